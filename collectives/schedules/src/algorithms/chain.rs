//! Chain: starting at the rank after the root and ending at the root, each rank reduces its data into the next rank's. In reverse,
//! the schedule is the broadcast.
//!
//! ```text
//! 4 ranks, root 3     0 -> 1 -> 2 -> 3      segments follow each other along the chain
//! ```
//!
//! Cost of a reduce: n-1 rounds, all bytes through each rank, all reduced; a left fold in rank order. In m segments: n+m-2 rounds
//! of 1/m of the bytes, close to the minimum for large buffers. Order uniform.
//! Source: pipelining of a chain, e.g. J. Pješivac-Grbović et al., "Performance analysis of MPI collective
//! operations", Cluster Comput. 10 (2007).

use crate::schedule::{Combine, Rank, Schedule, Span, Step};
use std::ops::Range;

/// A reduction along a chain that ends at the root.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// The number of ranks.
    pub ranks: u32,
    /// The rank at the end of the chain.
    pub root: Rank,
}

impl Chain {
    /// The position of a rank in the chain: 0 for the rank after the root, n-1 for the root.
    fn position(&self, rank: Rank) -> u32 {
        (rank.0 + self.ranks - self.root.0 - 1) % self.ranks
    }
}

impl Schedule for Chain {
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        u64::from(self.ranks) - 1
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (n, here, all) = (self.ranks, u64::from(self.position(rank)), Span::data(0, 1));
        let (before, after) = (Rank((rank.0 + n - 1) % n), Rank((rank.0 + 1) % n));
        Step {
            send: (here == round).then_some((after, all)),
            recv: (here == round + 1).then_some((before, all, Combine::Reduce)),
        }
    }
    fn active(&self, rank: Rank) -> Range<u64> {
        let here = u64::from(self.position(rank));
        here.saturating_sub(1)..(here + 1).min(self.rounds())
    }
    fn stride(&self) -> u64 {
        1
    }
    fn owner(&self, _chunk: u32) -> Rank {
        self.root
    }
}
