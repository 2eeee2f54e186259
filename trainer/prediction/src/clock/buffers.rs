//! The lengths and capacities of buffers, and a pool of buffers that works as the pool of the CPU's engine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A buffer without contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClockBuffer {
    pub len: usize,
    pub capacity: usize,
}

/// The free buffers of each capacity, and the elements of all buffers that were made.
#[derive(Default)]
pub(super) struct ClockBufferPool {
    free: BTreeMap<usize, usize>,
    pub made: usize,
}

impl ClockBufferPool {
    /// The smallest free buffer of at least `len` and at most twice as many elements, or a new buffer.
    pub fn take(&mut self, len: usize) -> ClockBuffer {
        let best = self.free.range(len..=2 * len).next().map(|(capacity, _)| *capacity);
        if let Some(Entry::Occupied(mut count)) = best.map(|capacity| self.free.entry(capacity)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        let mut buffer = ClockBuffer { len: 0, capacity: best.unwrap_or_default() };
        self.grow(&mut buffer, len);
        buffer
    }

    /// Gives `buffer` this length. A buffer without memory of its own takes a free buffer of the pool.
    pub fn size(&mut self, buffer: &mut ClockBuffer, len: usize) {
        if buffer.capacity == 0 && !self.free.is_empty() {
            *buffer = self.take(len);
        } else {
            self.grow(buffer, len);
        }
    }

    fn grow(&mut self, buffer: &mut ClockBuffer, len: usize) {
        buffer.len = len;
        if len > buffer.capacity {
            let capacity = grown(buffer.capacity, len);
            self.made += capacity - buffer.capacity;
            buffer.capacity = capacity;
        }
    }

    pub fn push(&mut self, buffer: ClockBuffer) {
        *self.free.entry(buffer.capacity).or_default() += 1;
    }

    /// Returns a buffer to the pool, if it has memory of its own.
    pub fn push_filled(&mut self, buffer: ClockBuffer) {
        if buffer.capacity > 0 {
            self.push(buffer);
        }
    }
}

/// The capacity of a vector that grows to `len`: at least twice the previous one, and at least four.
pub(super) fn grown(capacity: usize, len: usize) -> usize {
    len.max(2 * capacity).max(4)
}
