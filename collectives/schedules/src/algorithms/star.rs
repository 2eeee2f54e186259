//! Star: every rank sends to the root, which reduces, like a parameter server. In reverse, the root sends to every rank.
//!
//! ```text
//! 1 -> 0    2 -> 0    3 -> 0    then n-1 local reductions at the root
//! ```
//!
//! Cost of a reduce: n-1 rounds of messages that do not wait for each other, n-1 times the bytes into the root and reduced there;
//! canonical order. The least latency for very few ranks; otherwise a baseline for comparisons.
//! Source: the flat tree of MPI libraries, e.g. J. Pješivac-Grbović et al. (2007). The local order is our own.

use super::balanced::Balanced;
use crate::schedule::{Combine, Rank, Schedule, Span, Step};
use std::ops::Range;

/// A star: each rank in turn sends to the root.
#[derive(Clone, Copy, Debug)]
pub struct Star {
    ranks: u32,
    root: Rank,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Every rank's whole data, into a scratch copy of the root, where they are reduced.
    Reduce,
    /// Every rank's whole data; used only in reverse.
    Whole,
    /// Every rank's own block.
    Block,
}

impl Star {
    /// A reduction to the root. Rank s's data are stored in scratch copy s.
    pub fn reduce(ranks: u32, root: Rank) -> Star {
        Star { ranks, root, what: What::Reduce }
    }
    /// A gather of one block per rank at the root. In reverse, the schedule is the scatter.
    pub fn gather(ranks: u32, root: Rank) -> Star {
        Star { ranks, root, what: What::Block }
    }
    /// The schedule that is the star broadcast in reverse: every rank sends its whole data to the root.
    pub fn collect(ranks: u32, root: Rank) -> Star {
        Star { ranks, root, what: What::Whole }
    }

    fn part(&self, rank: Rank) -> Span {
        match self.what {
            What::Reduce if rank != self.root => Span::scratch(rank.0, 0, 1),
            What::Reduce | What::Whole => Span::data(0, 1),
            What::Block => Span::data(rank.0, 1),
        }
    }
}

impl Schedule for Star {
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        if self.what == What::Block { self.ranks } else { 1 }
    }
    fn rounds(&self) -> u64 {
        let messages = u64::from(self.ranks) - 1;
        if self.what == What::Reduce { 2 * messages } else { messages }
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let messages = self.ranks - 1;
        let round = round as u32;
        if round >= messages {
            let (into, from) = Balanced::new(self.ranks, self.root.0).merge(round - messages);
            let fold = Step::local(rank, self.part(Rank(from)), self.part(Rank(into)), Combine::Reduce);
            return if rank == self.root { fold } else { Step::IDLE };
        }
        let from = Rank(if round < self.root.0 { round } else { round + 1 });
        let sent = if self.what == What::Block { self.part(from) } else { Span::data(0, 1) };
        Step {
            send: (rank == from).then_some((self.root, sent)),
            recv: (rank == self.root).then_some((from, self.part(from), Combine::Copy)),
        }
    }
    fn active(&self, rank: Rank) -> Range<u64> {
        let turn = u64::from(if rank < self.root { rank.0 } else { rank.0.saturating_sub(1) });
        if rank == self.root { 0..self.rounds() } else { turn..turn + 1 }
    }
    fn owner(&self, chunk: u32) -> Rank {
        if self.what == What::Block { Rank(chunk) } else { self.root }
    }
}
