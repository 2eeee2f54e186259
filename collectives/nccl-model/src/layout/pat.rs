//! Parallel aggregated trees: a binomial tree for every chunk towards the chunk's owner, all trees at the same time. In reverse,
//! the schedule is the all-gather.
//!
//! ```text
//! 4 ranks, chunk 0     0 <- 1   2 <- 3      phase 0: ranks at an odd distance from the owner send by 1 rank
//!                      0 <----- 2           phase 1: by 2 ranks; for chunk c, all ranks shift by c
//! ```
//!
//! Cost of a reduce-scatter: ceil(log2 n) phases, (n-1)/n of the bytes out of every rank, all of them reduced. Any number of ranks.
//! Order uniform.
//! Source: S. Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale" (2025),
//! arXiv:2506.20252.

use allfold_schedules::schedule::{Combine, Permutation, Rank, Schedule, Span, Step};

/// A reduce-scatter over this many ranks; chunk r ends at rank r.
#[derive(Clone, Copy, Debug)]
pub struct Pat(pub u32);

impl Pat {
    /// The distance of a round's senders from the owner of the chunk that they send, and the distance to the receiver. Distances
    /// whose lowest set bit has the value 1 come first, then those whose lowest set bit has the value 2, and so on.
    fn distance(self, round: u64) -> (u32, u32) {
        let (mut left, mut hop) = (round as u32, 1);
        loop {
            let senders = (self.0 - 1 + hop) / (2 * hop);
            if left < senders || senders == 0 {
                return (hop + 2 * hop * left, hop);
            }
            left -= senders;
            hop *= 2;
        }
    }
}

impl Schedule for Pat {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        self.0
    }
    fn rounds(&self) -> u64 {
        u64::from(self.0) - 1
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let (n, (distance, hop)) = (self.0, self.distance(round));
        let (sent, got) = ((rank + n - distance) % n, (rank + n + hop - distance) % n);
        Step {
            send: Some((Rank((rank + n - hop) % n), Span::data(sent, 1))),
            recv: Some((Rank((rank + hop) % n), Span::data(got, 1), Combine::Reduce)),
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        vec![Permutation::Rotate(1)]
    }
}
