//! The lengths of buffers, and a pool of them that gives and takes as the pool of the engine of the CPU does.

/// A buffer without contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub len: usize,
    pub capacity: usize,
}

/// The free buffers, by their capacities, and the elements of all buffers that were made.
#[derive(Default)]
pub(super) struct RoomPool {
    free: Vec<usize>,
    pub made: usize,
}

impl RoomPool {
    /// A free buffer that is at most twice as large, the smallest of them, or a new one.
    pub fn take(&mut self, len: usize) -> Room {
        let fits = |at: &usize| (len..=2 * len).contains(&self.free[*at]);
        let best = (0..self.free.len()).filter(fits).min_by_key(|at| self.free[*at]);
        let mut room = Room { len: 0, capacity: best.map_or(0, |at| self.free.swap_remove(at)) };
        self.grow(&mut room, len);
        room
    }

    /// Gives `room` this length. One without memory of its own takes a free one.
    pub fn size(&mut self, room: &mut Room, len: usize) {
        if room.capacity == 0 && !self.free.is_empty() {
            *room = self.take(len);
        } else {
            self.grow(room, len);
        }
    }

    fn grow(&mut self, room: &mut Room, len: usize) {
        room.len = len;
        if len > room.capacity {
            let capacity = grown(room.capacity, len);
            self.made += capacity - room.capacity;
            room.capacity = capacity;
        }
    }

    pub fn push(&mut self, room: Room) {
        self.free.push(room.capacity);
    }

    /// Returns a buffer that has memory of its own.
    pub fn push_filled(&mut self, room: Room) {
        if room.capacity > 0 {
            self.push(room);
        }
    }
}

/// The capacity of a vector that grows to `len`: at least twice the previous one, and at least four.
pub(super) fn grown(capacity: usize, len: usize) -> usize {
    len.max(2 * capacity).max(4)
}
