//! A hash of all events of a run.

use crate::hash::{GOLDEN, finalize};

/// A hash of a set of events with their times: equal for equal sets, different for almost all others. It does not depend on the
/// order in which events are added, so engines that find the same events in different ways have the same hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventHash(u64);

impl EventHash {
    /// Adds a message to `rank` that is done at `time`, in picoseconds. For speed (tens of millions of messages per second) this
    /// mixes one word.
    #[inline]
    pub fn message(&mut self, rank: u32, time: u64) {
        let of = (u64::from(rank) + 1).wrapping_mul(GOLDEN);
        self.0 = self.0.wrapping_add(finalize(time.wrapping_add(of)));
    }

    /// Adds messages that were not timed one by one because they repeat earlier messages: `times` periods of `span` picoseconds.
    pub fn repeated(&mut self, times: u64, span: u64) {
        self.message(u32::MAX, times.rotate_left(32) ^ span);
    }

    /// The hash of all events added so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_hash_alike_in_any_order_and_everything_else_shows() {
        let hash = |messages: &[(u32, u64)]| {
            let mut hash = EventHash::default();
            messages.iter().for_each(|&(rank, time)| hash.message(rank, time));
            hash
        };
        let run = hash(&[(0, 5), (1, 5), (0, 9)]);
        assert_eq!(run, hash(&[(0, 9), (0, 5), (1, 5)]));
        assert_ne!(run, hash(&[(0, 5), (1, 9), (0, 5)]));
        assert_ne!(run, hash(&[(0, 5), (1, 5), (0, 10)]));
        assert_ne!(run, hash(&[(0, 5), (1, 5)]));
    }
}
