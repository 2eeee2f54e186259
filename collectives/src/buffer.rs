//! Buffers that asynchronous operations take and return, in ordinary memory or in registered memory.

use crate::Element;
use allfold_kernels::SplitVec;
use allfold_kernels::fused::RegisteredBuffer;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Elements that an operation can own while it runs. A borrowed slice would be unsafe: if the handle of the operation were
/// forgotten, the borrow would end while the operation still writes. A buffer dereferences to a slice.
///
/// [`crate::Communicator::buffer`] makes a registered buffer, which other ranks access in place.
pub struct Buffer<T: Element> {
    owner: Home<T>,
}

/// The memory of the elements.
enum Home<T> {
    Host(Vec<T>),
    /// A part of a vector that was split.
    Part(SplitVec<T>),
    /// Memory that the ranks of a communicator share.
    Shared(RegisteredBuffer, PhantomData<T>),
}

impl<T: Element> Buffer<T> {
    /// `len` elements, all bits zero.
    pub fn zeroed(len: usize) -> Buffer<T> {
        Buffer::from(vec![T::zeroed(); len])
    }

    /// A buffer over a registered buffer, whose size in bytes must be a multiple of the element's size.
    pub(crate) fn shared(buffer: RegisteredBuffer) -> Buffer<T> {
        Buffer { owner: Home::Shared(buffer, PhantomData) }
    }

    /// Whether the buffer is registered: other ranks access it in place.
    pub fn is_shared(&self) -> bool {
        matches!(self.owner, Home::Shared(..))
    }

    /// The elements as a vector. They are copied if the buffer is registered or was ever split.
    pub fn into_vec(self) -> Vec<T> {
        match self.owner {
            Home::Host(elements) => elements,
            Home::Part(_) | Home::Shared(..) => self.to_vec(),
        }
    }

    /// Splits the buffer at element `at` and returns the second part. Nothing is copied unless the buffer is registered.
    /// [`Buffer::join`] joins the parts again. An operation can take one part while the other is still being filled.
    ///
    /// ```
    /// use allfold_collectives::Buffer;
    ///
    /// let mut first = Buffer::from(vec![1, 2, 3]);
    /// let place = first.as_ptr();
    /// let rest = first.split_off(1);
    /// assert_eq!((&first[..], &rest[..]), (&[1][..], &[2, 3][..]));
    /// first.join(rest);
    /// assert_eq!((&first[..], first.as_ptr()), (&[1, 2, 3][..], place));
    /// ```
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Buffer<T> {
        let mut first = match std::mem::replace(&mut self.owner, Home::Host(Vec::new())) {
            Home::Host(elements) => SplitVec::from(elements),
            Home::Part(part) => part,
            Home::Shared(buffer, _) => SplitVec::from(bytemuck::cast_slice(&buffer).to_vec()),
        };
        let rest = first.split_off(at);
        self.owner = Home::Part(first);
        Buffer { owner: Home::Part(rest) }
    }

    /// Appends `next`. Nothing is copied if `next` was split off from this buffer at its end.
    pub fn join(&mut self, next: Buffer<T>) {
        let next = match (&mut self.owner, next.owner) {
            (Home::Part(part), Home::Part(next)) => match part.join(next) {
                Ok(()) => return,
                Err(next) => Home::Part(next),
            },
            (_, next) => next,
        };
        *self = [&self[..], &Buffer { owner: next }[..]].concat().into();
    }
}

impl<T: Element> Clone for Buffer<T> {
    /// Copies the elements to ordinary memory.
    fn clone(&self) -> Buffer<T> {
        self.to_vec().into()
    }
}

impl<T: Element + PartialEq> PartialEq for Buffer<T> {
    fn eq(&self, other: &Buffer<T>) -> bool {
        self[..] == other[..]
    }
}

impl<T: Element> From<Vec<T>> for Buffer<T> {
    fn from(elements: Vec<T>) -> Buffer<T> {
        Buffer { owner: Home::Host(elements) }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.owner {
            Home::Host(elements) => elements,
            Home::Part(part) => part,
            Home::Shared(buffer, _) => bytemuck::cast_slice(buffer),
        }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.owner {
            Home::Host(elements) => elements,
            Home::Part(part) => part,
            Home::Shared(buffer, _) => bytemuck::cast_slice_mut(buffer),
        }
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}
