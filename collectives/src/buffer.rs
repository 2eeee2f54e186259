//! A buffer that an asynchronous operation takes, and gives back when it is done.

use crate::Element;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Elements in memory that can be handed over. A borrowed slice could not be: were the handle of the operation
/// forgotten, the borrow would end while the operation still wrote. It reads and writes as a slice.
#[derive(Clone, PartialEq)]
pub struct Buffer<T: Element> {
    home: Home<T>,
}

/// Where the elements are. Buffers on devices will be further variants.
#[derive(Clone, PartialEq)]
enum Home<T> {
    Host(Vec<T>),
}

impl<T: Element> Buffer<T> {
    /// `len` elements, all bits zero.
    pub fn zeroed(len: usize) -> Buffer<T> {
        Buffer::from(vec![T::zeroed(); len])
    }

    /// The elements, without a copy.
    pub fn into_vec(self) -> Vec<T> {
        match self.home {
            Home::Host(elements) => elements,
        }
    }
}

impl<T: Element> From<Vec<T>> for Buffer<T> {
    fn from(elements: Vec<T>) -> Buffer<T> {
        Buffer { home: Home::Host(elements) }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.home {
            Home::Host(elements) => elements,
        }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.home {
            Home::Host(elements) => elements,
        }
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}
