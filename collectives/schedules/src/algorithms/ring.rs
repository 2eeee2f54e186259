//! Ring: every rank passes chunks to the next rank, in the first half of the rounds to reduce them, in the second to copy the
//! results.
//!
//! ```text
//! 4 ranks    0 -> 1 -> 2 -> 3 -> 0    round 0: rank r sends chunk r; round k: the chunk received in round k-1
//! ```
//!
//! Cost: 2(n-1) rounds, 2(n-1)/n of the bytes per rank, (n-1)/n of them reduced. The fewest bytes, the most rounds.
//! Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! J. Parallel Distrib. Comput. 69 (2009).

use crate::schedule::{Combine, Permutation, Rank, Schedule, Span, Step};

/// All-reduce over a ring of this many ranks.
#[derive(Clone, Copy, Debug)]
pub struct RingAllReduce(pub u32);

impl Schedule for RingAllReduce {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        self.0
    }
    fn rounds(&self) -> u64 {
        2 * (u64::from(self.0) - 1)
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let (n, round) = (self.0, round as u32);
        let sent = (rank + 2 * n - round) % n;
        let got = (sent + n - 1) % n;
        let how = if round < n - 1 { Combine::Reduce } else { Combine::Copy };
        Step {
            send: Some((Rank((rank + 1) % n), Span::data(sent, 1))),
            recv: Some((Rank((rank + n - 1) % n), Span::data(got, 1), how)),
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        vec![Permutation::Rotate(1)]
    }
    fn renumbers_chunks(&self) -> bool {
        true
    }
}

/// Reduce-scatter over a ring of this many ranks: the first half of the ring all-reduce, numbered so that chunk r ends at rank r.
/// In reverse, the schedule is the all-gather.
#[derive(Clone, Copy, Debug)]
pub struct RingReduceScatter(pub u32);

impl Schedule for RingReduceScatter {
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
        let (n, next) = (self.0, round as u32 + 1);
        let (sent, got) = ((rank + n - next) % n, (rank + 2 * n - next - 1) % n);
        Step {
            send: Some((Rank((rank + 1) % n), Span::data(sent, 1))),
            recv: Some((Rank((rank + n - 1) % n), Span::data(got, 1), Combine::Reduce)),
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        vec![Permutation::Rotate(1)]
    }
    fn renumbers_chunks(&self) -> bool {
        true
    }
}
