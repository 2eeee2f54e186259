//! Dissemination: every rank signals the next rank, then the rank two ahead, then four ahead, until a signal of every
//! rank has reached it, directly or through other ranks.
//!
//! ```text
//! 5 ranks     round 0: r -> r+1      round 1: r -> r+2      round 2: r -> r+4
//! ```
//!
//! Cost: ceil(log2 n) rounds of empty messages. For barriers only, because a reduction would count some ranks twice.
//! Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", Int. J. Parallel
//! Program. 17 (1988).

use crate::schedule::{Combine, Permutation, Rank, Schedule, Span, Step};

/// A barrier over this many ranks.
#[derive(Clone, Copy, Debug)]
pub struct Dissemination(pub u32);

impl Schedule for Dissemination {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        u64::from(u32::BITS - (self.0 - 1).leading_zeros())
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let (n, far, all) = (self.0, 1 << round, Span::data(0, 1));
        Step {
            send: Some((Rank((rank + far) % n), all)),
            recv: Some((Rank((rank + n - far) % n), all, Combine::Reduce)),
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        vec![Permutation::Rotate(1)]
    }
}
