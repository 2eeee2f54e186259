//! Pairwise exchange: in every round the ranks form pairs and exchange blocks, until every two ranks have been a pair.
//!
//! ```text
//! 4 ranks     round 0: 0-1 2-3      round 1: 0-2 1-3      round 2: 0-3 1-2
//! ```
//!
//! Cost: n-1 rounds (n if n is not a power of two), (n-1)/n of the bytes per rank, no scratch.
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), section 4.4; round-robin
//! tournaments for rank counts that are not powers of two.

use crate::schedule::{Combine, Permutation, Rank, Schedule, Span, Step};

/// All-to-all over this many ranks.
#[derive(Clone, Copy, Debug)]
pub struct Pairwise(pub u32);

impl Schedule for Pairwise {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        self.0
    }
    fn rounds(&self) -> u64 {
        u64::from(if self.0.is_power_of_two() { self.0 - 1 } else { self.0 })
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let (n, round) = (self.0, round as u32);
        let peer = if n.is_power_of_two() { rank ^ (round + 1) } else { (round + n - rank) % n };
        if peer == rank {
            return Step::IDLE;
        }
        let block = Span::data(peer, 1);
        Step { send: Some((Rank(peer), block)), recv: Some((Rank(peer), block, Combine::Copy)) }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        let levels = if self.0.is_power_of_two() { self.0.ilog2() } else { 0 };
        (0..levels).map(|bit| Permutation::Xor(1 << bit)).collect()
    }
}
