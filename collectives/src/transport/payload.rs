//! The payload of frames, in pooled buffers.

use allfold_base::lock;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// A pool retains at most this many bytes; buffers beyond that are freed when returned.
const KEPT: usize = 256 << 20;

/// Buffers of a group of ranks, by size class: class k holds buffers of 2^k words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    shelves: Arc<Mutex<Shelves>>,
}

#[derive(Debug, Default)]
struct Shelves {
    classes: Vec<Vec<Vec<u64>>>,
    kept: usize,
}

/// Bytes from a [`Pool`], aligned for every element type; dropping them returns them to the pool.
pub(crate) struct Payload {
    words: Vec<u64>,
    len: usize,
    owner: Pool,
}

impl Pool {
    /// A payload of `len` bytes with undefined content.
    pub fn take(&self, len: usize) -> Payload {
        let owner = self.clone();
        if len == 0 {
            return Payload { words: Vec::new(), len, owner };
        }
        let words = len.div_ceil(8).next_power_of_two();
        let mut shelves = lock(&self.shelves);
        let used = shelves.classes.get_mut(words.ilog2() as usize).and_then(Vec::pop);
        if used.is_some() {
            shelves.kept -= words * 8;
        }
        drop(shelves);
        Payload { words: used.unwrap_or_else(|| vec![0; words]), len, owner }
    }
}

impl Payload {
    /// A payload that takes the time of `len` bytes on virtual links, and has no contents.
    pub fn of_length(len: usize) -> Payload {
        Payload { words: Vec::new(), len, owner: Pool::default() }
    }

    /// The number of bytes that links carry.
    pub fn length(&self) -> usize {
        self.len
    }

    /// Takes another buffer from the pool of this payload.
    pub fn another(&self, len: usize) -> Payload {
        self.owner.take(len)
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        let words = mem::take(&mut self.words);
        if words.is_empty() {
            return;
        }
        let mut shelves = lock(&self.owner.shelves);
        if shelves.kept + words.len() * 8 > KEPT {
            return;
        }
        shelves.kept += words.len() * 8;
        let class = words.len().ilog2() as usize;
        if shelves.classes.len() <= class {
            shelves.classes.resize_with(class + 1, Vec::new);
        }
        shelves.classes[class].push(words);
    }
}

impl Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let bytes = bytemuck::cast_slice(&self.words);
        &bytes[..self.len.min(bytes.len())]
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = bytemuck::cast_slice_mut(&mut self.words);
        let held = self.len.min(bytes.len());
        &mut bytes[..held]
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_payload_is_used_again() {
        let pool = Pool::default();
        let first = pool.take(1000);
        let place = first.as_ptr();
        drop(first);
        let second = pool.take(900);
        assert_eq!((second.as_ptr(), second.len()), (place, 900));
        assert_ne!(pool.take(900).as_ptr(), place);
        assert_eq!(pool.take(0).len(), 0);
    }
}
