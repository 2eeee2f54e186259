//! Recursive doubling: every rank exchanges all its data with its neighbour, then with the neighbouring pair, and so on.
//!
//! ```text
//! 4 ranks     round 0: 0-1 2-3      round 1: 0-2 1-3      both sides send, both reduce
//! ```
//!
//! Cost: log2(n) rounds, log2(n) times the bytes per rank, all reduced; canonical order. The fewest rounds, hence for small
//! buffers. Two more rounds if n is not a power of two.
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), section 4.5.

use crate::schedule::{Combine, FoldedToPowerOfTwo, Permutation, Rank, Schedule, Span, Step};

/// All-reduce over a power of two of ranks, by recursive doubling.
#[derive(Clone, Copy, Debug)]
pub struct RecursiveDoubling(u32);

/// All-reduce over any number of ranks, by recursive doubling.
pub fn recursive_doubling(ranks: u32) -> impl Schedule + Clone {
    FoldedToPowerOfTwo::and_back(ranks, RecursiveDoubling)
}

impl Schedule for RecursiveDoubling {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        u64::from(self.0.ilog2())
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let (peer, all) = (Rank(rank ^ (1 << round)), Span::data(0, 1));
        Step { send: Some((peer, all)), recv: Some((peer, all, Combine::Reduce)) }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        (0..self.0.ilog2()).map(|bit| Permutation::Xor(1 << bit)).collect()
    }
}
