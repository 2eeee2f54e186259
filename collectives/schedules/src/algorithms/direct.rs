//! Direct: every rank sends to each other rank the chunk that rank owns, reduces its own chunk locally, and sends the result to
//! all.
//!
//! ```text
//! round k: rank r sends chunk r+k to rank r+k        then n-1 local reductions        round k: chunk r to rank r+k
//! ```
//!
//! Cost: 2(n-1) rounds of messages that do not wait for each other, 2(n-1)/n of the bytes per rank for any n, (n-1)/n of them
//! reduced; canonical order. Needs scratch of the data's size and n(n-1) connections.
//! Source: pairwise exchange, R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), section 4.3.
//! The local order is our own.

use super::balanced::Balanced;
use crate::schedule::{Combine, Permutation, Rank, Schedule, Span, Step, Then};

/// The direct all-reduce: a direct reduce-scatter, then a direct all-gather.
pub fn direct(ranks: u32) -> Then<DirectReduceScatter, DirectAllGather> {
    Then::new(DirectReduceScatter(ranks), DirectAllGather(ranks))
}

/// Direct reduce-scatter: chunk r ends at rank r. Rank s's contribution is stored in scratch copy s.
#[derive(Clone, Copy, Debug)]
pub struct DirectReduceScatter(pub u32);

impl Schedule for DirectReduceScatter {
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
        let part = |of: u32| if of == rank { Span::data(rank, 1) } else { Span::scratch(of, rank, 1) };
        if round < n - 1 {
            let (to, from) = ((rank + round + 1) % n, (rank + n - round - 1) % n);
            Step {
                send: Some((Rank(to), Span::data(to, 1))),
                recv: Some((Rank(from), part(from), Combine::Copy)),
            }
        } else {
            let (into, from) = Balanced::new(n, rank).merge(round - (n - 1));
            Step::local(Rank(rank), part(from), part(into), Combine::Reduce)
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        vec![Permutation::Rotate(1)]
    }
}

/// Direct all-gather: rank r sends chunk r to every other rank.
#[derive(Clone, Copy, Debug)]
pub struct DirectAllGather(pub u32);

impl Schedule for DirectAllGather {
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
        let (n, far) = (self.0, round as u32 + 1);
        let (to, from) = ((rank + far) % n, (rank + n - far) % n);
        Step {
            send: Some((Rank(to), Span::data(rank, 1))),
            recv: Some((Rank(from), Span::data(from, 1), Combine::Copy)),
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        vec![Permutation::Rotate(1)]
    }
}
