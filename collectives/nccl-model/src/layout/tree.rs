//! NCCL's trees over nodes: a binary tree in which inner nodes and leaves alternate, and its twin, the second tree of the pair.
//!
//! ```text
//! 8 nodes     0-------------- 4                     node p with lowest bit b: its parent is p with bit b cleared and
//!                        ,----+----.                the next bit set, or cleared if that is beyond the last node
//!                        2         6                odd nodes are leaves; the twin is the same tree over nodes
//!                      1   3     5   7              shifted by one (odd node count) or counted from the end (even)
//! ```
//!
//! A node receives from both children at the same time, and from the upper one into scratch, which the node then adds.
//!
//! Cost of a reduce: ceil(log2 n) hops in 3 ceil(log2 n) rounds, all bytes once out of each node and at most twice into it. Order
//! uniform.
//! Source: NCCL's `src/graph/trees.cc` (2.29); Sanders, Speck and Träff, Parallel Comput. 35 (2009).

use allfold_schedules::schedule::{Combine, Rank, Schedule, Span, Step};

/// A reduction to the root of the tree, or of its twin.
#[derive(Clone, Copy, Debug)]
pub struct NodeTree {
    /// The number of nodes.
    pub nodes: u32,
    /// Whether this is the twin, which is the tree over shifted or mirrored nodes.
    pub twin: bool,
}

impl NodeTree {
    fn place(self, rank: u32) -> u32 {
        match (self.twin, self.nodes % 2) {
            (false, _) => rank,
            (true, 1) => (rank + self.nodes - 1) % self.nodes,
            (true, _) => self.nodes - 1 - rank,
        }
    }

    fn rank(self, place: u32) -> Rank {
        Rank(match (self.twin, self.nodes % 2) {
            (false, _) => place,
            (true, 1) => (place + 1) % self.nodes,
            (true, _) => self.nodes - 1 - place,
        })
    }

    /// The lowest bit that is set in `place`; for the root, the first power of two beyond all places.
    fn bit(self, place: u32) -> u32 {
        if place == 0 { self.nodes.next_power_of_two() } else { 1 << place.trailing_zeros() }
    }

    fn parent(self, place: u32) -> Option<u32> {
        let bit = self.bit(place);
        let up = (place ^ bit) | (bit << 1);
        (place != 0).then_some(if up < self.nodes { up } else { place ^ bit })
    }

    /// The children of a place, the lower one first, each at a distance of half the place's lowest bit. If the upper child would be
    /// beyond the last place, its distance is halved until it is not.
    fn children(self, place: u32) -> [Option<u32>; 2] {
        let half = self.bit(place) / 2;
        let lower = (place > 0 && half > 0).then(|| place - half);
        let mut reach = half;
        while reach > 0 && place + reach >= self.nodes {
            reach /= 2;
        }
        [lower, (reach > 0).then(|| place + reach)]
    }

    fn depth(self) -> u32 {
        self.nodes.next_power_of_two().trailing_zeros()
    }

    /// The number of edges between a place and the leaves below it; the lower half of its subtree is always complete.
    fn height(self, place: u32) -> u32 {
        if place == 0 { self.depth() } else { place.trailing_zeros() }
    }

    /// The round of a message. Each level of heights has three rounds: the lower child's message, the upper child's message, and
    /// the addition of the latter.
    fn round(self, child: u32, parent: u32) -> u64 {
        let upper = u64::from(child > parent);
        3 * (u64::from(self.height(parent)) - 1) + upper
    }
}

impl Schedule for NodeTree {
    fn ranks(&self) -> u32 {
        self.nodes
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        3 * u64::from(self.depth())
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (here, all, apart) = (self.place(rank.0), Span::data(0, 1), Span::scratch(0, 0, 1));
        let [lower, upper] = self.children(here);
        if upper.is_some_and(|upper| self.round(upper, here) + 1 == round) {
            return Step::local(rank, apart, all, Combine::Reduce);
        }
        let parent = self.parent(here).filter(|&parent| self.round(here, parent) == round);
        let lower = lower.filter(|&child| self.round(child, here) == round);
        let upper = upper.filter(|&child| self.round(child, here) == round);
        Step {
            send: parent.map(|parent| (self.rank(parent), all)),
            recv: lower
                .map(|child| (self.rank(child), all, Combine::Reduce))
                .or(upper.map(|child| (self.rank(child), apart, Combine::Copy))),
        }
    }
    fn stride(&self) -> u64 {
        2
    }
    fn owner(&self, _chunk: u32) -> Rank {
        self.rank(0)
    }
}
