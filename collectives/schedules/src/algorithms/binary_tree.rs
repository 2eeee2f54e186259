//! Binary tree: every rank reduces its two children's data into its own and sends the result to its parent. In reverse, the
//! schedule is the broadcast.
//!
//! ```text
//! 8 ranks, root 0     0 <- 1 <- 2 <- 4        position p has parent p/2; the root has one child, so that it carries
//!                            |  +--- 5        no more data than the others. Two rounds per level: odd children
//!                            +- 3 <- 6        after even ones.
//!                               +--- 7
//! ```
//!
//! Cost of a reduce: 2 ceil(log2 n) rounds, all bytes once out of each rank and at most twice into it, all reduced; order uniform.
//! In segments, each segment occupies a rank's ports for two rounds.
//! Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan", Parallel Comput. 35 (2009).

use crate::schedule::{Combine, Rank, Schedule, Span, Step};
use std::ops::Range;

/// A reduction along a binary tree to the root.
#[derive(Clone, Copy, Debug)]
pub struct BinaryTree {
    /// The number of ranks.
    pub ranks: u32,
    /// The root, at position 0.
    pub root: Rank,
    /// Whether positions count down from the root instead of up, which exchanges inner ranks and leaves.
    pub mirrored: bool,
}

impl BinaryTree {
    /// A tree in which positions are ranks counted up from the root.
    pub fn new(ranks: u32, root: Rank) -> BinaryTree {
        BinaryTree { ranks, root, mirrored: false }
    }

    fn position(&self, rank: Rank) -> u32 {
        let (n, root) = (self.ranks, self.root.0);
        if self.mirrored { (n + root - rank.0) % n } else { (n + rank.0 - root) % n }
    }

    fn rank(&self, position: u32) -> Rank {
        let (n, root) = (self.ranks, self.root.0);
        Rank(if self.mirrored { (n + root - position) % n } else { (root + position) % n })
    }

    /// The number of levels of edges; the edge above position p has level log2 p.
    fn levels(&self) -> u32 {
        (self.ranks - 1).checked_ilog2().map_or(0, |deepest| deepest + 1)
    }
}

impl Schedule for BinaryTree {
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        2 * u64::from(self.levels())
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (level, side) = (self.levels() - 1 - (round / 2) as u32, (round % 2) as u32);
        let (here, all) = (self.position(rank), Span::data(0, 1));
        let hangs = |position: u32| position.checked_ilog2() == Some(level) && position % 2 == side;
        let child = Some(2 * here + side).filter(|child| *child < self.ranks && hangs(*child));
        Step {
            send: hangs(here).then(|| (self.rank(here / 2), all)),
            recv: child.map(|child| (self.rank(child), all, Combine::Reduce)),
        }
    }
    /// The rounds of the edges to the rank's children, and of the edge to its parent.
    fn active(&self, rank: Rank) -> Range<u64> {
        let depth = self.position(rank).checked_ilog2().map_or(0, |level| level + 1);
        let first = 2 * (i64::from(self.levels()) - 1 - i64::from(depth));
        first.max(0) as u64..self.rounds().min((first + 4) as u64)
    }
    fn stride(&self) -> u64 {
        2
    }
    fn owner(&self, _chunk: u32) -> Rank {
        self.root
    }
}
