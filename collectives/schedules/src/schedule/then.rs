//! One schedule followed by another on the same data.
//!
//! ```text
//! reduce-scatter, then all-gather    = all-reduce
//! reduce to rank 0, then broadcast   = all-reduce
//! gather to rank 0, then broadcast   = all-gather
//! ```

use super::symmetry::lcm;
use super::{Permutation, Rank, Schedule, Span, Step};
use std::ops::Range;

/// The schedule `first`, then `second`. The chunks of both are cut until both have equally many: the least common multiple of their
/// numbers.
#[derive(Clone, Copy, Debug)]
pub struct Then<A, B> {
    first: A,
    second: B,
    chunks: u32,
}

impl<A: Schedule, B: Schedule> Then<A, B> {
    /// The schedule `first`, then `second`.
    ///
    /// # Panics
    /// The schedules are for different numbers of ranks, or need more than 2^32 - 1 chunks.
    pub fn new(first: A, second: B) -> Then<A, B> {
        assert_eq!(first.ranks(), second.ranks(), "both parts of a schedule are for the same ranks");
        let (a, b) = (u64::from(first.chunks()), u64::from(second.chunks()));
        let chunks = lcm(a, b);
        assert!(chunks <= u64::from(u32::MAX), "{a} and {b} chunks need more than 2^32 - 1 chunks together");
        Then { first, second, chunks: chunks as u32 }
    }

    fn finer(&self, of: &impl Schedule) -> u32 {
        self.chunks / of.chunks()
    }
}

impl<A: Schedule, B: Schedule> Schedule for Then<A, B> {
    fn ranks(&self) -> u32 {
        self.first.ranks()
    }
    fn chunks(&self) -> u32 {
        self.chunks
    }
    fn rounds(&self) -> u64 {
        self.first.rounds() + self.second.rounds()
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (step, by) = match round.checked_sub(self.first.rounds()) {
            None => (self.first.step(rank, round), self.finer(&self.first)),
            Some(later) => (self.second.step(rank, later), self.finer(&self.second)),
        };
        step.map(|peer| peer, |span: Span| span.refined(by, 0))
    }
    fn active(&self, rank: Rank) -> Range<u64> {
        let (a, b, shift) = (self.first.active(rank), self.second.active(rank), self.first.rounds());
        match (a.is_empty(), b.is_empty()) {
            (_, true) => a,
            (true, _) => b.start + shift..b.end + shift,
            _ => a.start..b.end + shift,
        }
    }
    fn next(&self, rank: Rank, round: u64) -> Option<u64> {
        let shift = self.first.rounds();
        let later = || Some(shift + self.second.next(rank, round.saturating_sub(shift))?);
        if round < shift { self.first.next(rank, round).or_else(later) } else { later() }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        Permutation::common(&self.first.symmetry(), &self.second.symmetry())
    }
    fn lanes(&self) -> u32 {
        self.first.lanes().max(self.second.lanes())
    }
    fn lane(&self, round: u64) -> u32 {
        match round.checked_sub(self.first.rounds()) {
            None => self.first.lane(round),
            Some(later) => self.second.lane(later),
        }
    }
    /// The stride of a pipeline through both schedules, if both are pipelines. A rank's ports serve both in turn.
    fn stride(&self) -> u64 {
        match (self.first.stride(), self.second.stride()) {
            (0, _) | (_, 0) => 0,
            (a, b) => a + b,
        }
    }
    /// The owner according to the schedule with more chunks; if both have equally many, according to the second one, which
    /// determines the result.
    fn owner(&self, chunk: u32) -> Rank {
        if self.finer(&self.first) < self.finer(&self.second) {
            self.first.owner(chunk / self.finer(&self.first))
        } else {
            self.second.owner(chunk / self.finer(&self.second))
        }
    }
}
