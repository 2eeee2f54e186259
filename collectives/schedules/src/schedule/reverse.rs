//! A schedule in reverse: the last round comes first, every receiver sends back, nothing is reduced.
//!
//! ```text
//! reduce-scatter reversed = all-gather        reduce reversed = broadcast        gather reversed = scatter
//! ```
//!
//! Source: the duality of one-to-all and all-to-one operations, e.g. E. Chan, M. Heimlich, A. Purkayastha and R. van
//! de Geijn, "Collective communication: theory, practice, and experience", Concurrency Comput. 19 (2007), section 4.

use super::{Combine, Permutation, Rank, Schedule, Step, Then};
use std::ops::Range;

/// A schedule in reverse: data return to the span from which they were sent.
#[derive(Clone, Copy, Debug)]
pub struct Reverse<S>(pub S);

/// A schedule followed by its reverse: reduce-scatter then all-gather, or reduce then broadcast.
pub fn then_reverse<S: Schedule + Clone>(there: S) -> Then<S, Reverse<S>> {
    Then::new(there.clone(), Reverse(there))
}

impl<S: Schedule> Reverse<S> {
    fn mirror(&self, round: u64) -> u64 {
        self.0.rounds() - 1 - round
    }
}

impl<S: Schedule> Schedule for Reverse<S> {
    fn ranks(&self) -> u32 {
        self.0.ranks()
    }
    fn chunks(&self) -> u32 {
        self.0.chunks()
    }
    fn rounds(&self) -> u64 {
        self.0.rounds()
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let there = self.0.step(rank, self.mirror(round));
        Step {
            send: there.recv.map(|(from, what, _)| (from, what)),
            recv: there.send.map(|(to, what)| (to, what, Combine::Copy)),
        }
    }
    fn active(&self, rank: Rank) -> Range<u64> {
        let there = self.0.active(rank);
        if there.is_empty() { there } else { self.mirror(there.end - 1)..self.mirror(there.start) + 1 }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        self.0.symmetry()
    }
    fn renumbers_chunks(&self) -> bool {
        self.0.renumbers_chunks()
    }
    fn lanes(&self) -> u32 {
        self.0.lanes()
    }
    fn lane(&self, round: u64) -> u32 {
        self.0.lane(self.mirror(round))
    }
    fn segments(&self) -> u32 {
        self.0.segments()
    }
    fn stride(&self) -> u64 {
        self.0.stride()
    }
    fn owner(&self, chunk: u32) -> Rank {
        self.0.owner(chunk)
    }
}
