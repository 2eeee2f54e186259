//! Shift: every rank sends its data to the next rank and receives the previous rank's.
//!
//! ```text
//! 4 ranks    0 -> 1 -> 2 -> 3 -> 0
//! ```
//!
//! Cost: one round, all bytes of each rank, no reduction.
//! Source: the sendrecv test of nccl-tests.

use crate::schedule::{Combine, Permutation, Rank, Schedule, Span, Step};

/// Every one of this many ranks sends to the next rank in a circle.
#[derive(Clone, Copy, Debug)]
pub struct Shift(pub u32);

impl Schedule for Shift {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        u64::from(self.0 > 1)
    }
    fn step(&self, Rank(rank): Rank, _round: u64) -> Step {
        let (n, all) = (self.0, Span::data(0, 1));
        Step {
            send: Some((Rank((rank + 1) % n), all)),
            recv: Some((Rank((rank + n - 1) % n), all, Combine::Copy)),
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        vec![Permutation::Rotate(1)]
    }
}
