//! Binomial tree: neighbouring ranks combine, then neighbouring pairs, and so on, until the root has all data. In reverse, the schedule
//! is the broadcast, or the scatter.
//!
//! ```text
//! 8 ranks, root 0     round 0: 1>0 3>2 5>4 7>6      round 1: 2>0 6>4      round 2: 4>0
//! 6 ranks, root 5     round 0: 1>0 3>2 (pairs)      round 1: 2>0 4>5      round 2: 0>5
//! ```
//!
//! Cost of a reduce: ceil(log2 n) rounds, all bytes from each rank but the root, all reduced; canonical order for any root. Cost of
//! a gather: ceil(log2 n) rounds, (n-1)/n of the bytes into the root.
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), section 4.2. The choice of the rank
//! that keeps a block is our own.

use super::balanced::Balanced;
use crate::schedule::{Combine, Rank, Schedule, Span, Step};

/// A reduction to a root, or a gather of one block per rank.
#[derive(Clone, Copy, Debug)]
pub struct Binomial {
    tree: Balanced,
    gather: bool,
}

impl Binomial {
    /// A reduction to `root`.
    pub fn reduce(ranks: u32, root: Rank) -> Binomial {
        Binomial { tree: Balanced::new(ranks, root.0), gather: false }
    }

    /// A gather at `root`.
    pub fn gather(ranks: u32, root: Rank) -> Binomial {
        Binomial { gather: true, ..Binomial::reduce(ranks, root) }
    }

    /// The data of a message: for a gather the chunks of ranks `from .. to`, for a reduction the whole data.
    fn what(&self, from: u32, to: u32) -> (Span, Combine) {
        if self.gather {
            (Span::data(from, to - from), Combine::Copy)
        } else {
            (Span::data(0, 1), Combine::Reduce)
        }
    }
}

impl Schedule for Binomial {
    fn ranks(&self) -> u32 {
        self.tree.pairs.ranks
    }
    fn chunks(&self) -> u32 {
        if self.gather { self.tree.pairs.ranks } else { 1 }
    }
    fn rounds(&self) -> u64 {
        u64::from(self.tree.pairs.pairs > 0) + u64::from(self.tree.pairs.levels())
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let (tree, pairs) = (self.tree, self.tree.pairs);
        let place = pairs.place(rank);
        let (partner, into, sender) = match round.checked_sub(u64::from(pairs.pairs > 0)) {
            None => {
                let Some(partner) = pairs.partner(rank) else { return Step::IDLE };
                let into = tree.holder(0, place);
                (partner, into, (into ^ 1)..(into ^ 1) + 1)
            }
            Some(level) => {
                let level = level as u32;
                if tree.holder(level, place) != rank {
                    return Step::IDLE;
                }
                let (partner, into) =
                    (tree.holder(level, place ^ (1 << level)), tree.holder(level + 1, place));
                let block = (if into == rank { place ^ (1 << level) } else { place }) >> level;
                (partner, into, pairs.first(block << level)..pairs.first((block + 1) << level))
            }
        };
        let (span, how) = self.what(sender.start, sender.end);
        if into == rank {
            Step { send: None, recv: Some((Rank(partner), span, how)) }
        } else {
            Step { send: Some((Rank(partner), span)), recv: None }
        }
    }
    fn owner(&self, chunk: u32) -> Rank {
        Rank(if self.gather { chunk } else { self.tree.root })
    }
}
