//! The trees that NCCL lays over nodes: a binary tree whose inner nodes and leaves alternate, and its twin.
//!
//! ```text
//! 8 nodes     0-------------- 4                     node p: its lowest bit b; its parent is p with bit b off and
//!                        ,----+----.                the next one on, or off where that is beyond the last
//!                        2         6                odd nodes are leaves; the twin is the same over places moved
//!                      1   3     5   7              by one (an odd number) or counted from the end (an even one)
//! ```
//!
//! A node takes in both children at once, the upper one into a place of its own, which it then adds.
//!
//! Cost of a reduce: ceil(log2 n) hops in 3 ceil(log2 n) rounds, all the bytes once out of each node and at most twice
//! into it. Order uniform.
//! Source: NCCL's `src/graph/trees.cc` (2.29); Sanders, Speck and Träff, Parallel Comput. 35 (2009).

use allfold_schedules::schedule::{Combine, Rank, Schedule, Span, Step};

/// Reduce to the root of the tree, or of its twin.
#[derive(Clone, Copy, Debug)]
pub struct NodeTree {
    /// How many nodes.
    pub nodes: u32,
    /// Whether it is the twin.
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

    /// The lowest bit that is set; of the root, the first beyond all places.
    fn bit(self, place: u32) -> u32 {
        if place == 0 { self.nodes.next_power_of_two() } else { 1 << place.trailing_zeros() }
    }

    fn parent(self, place: u32) -> Option<u32> {
        let bit = self.bit(place);
        let up = (place ^ bit) | (bit << 1);
        (place != 0).then_some(if up < self.nodes { up } else { place ^ bit })
    }

    /// Which children a place has, the lower one first: found among the places half a bit away, and halving where
    /// those are beyond the last.
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

    /// How many edges lie between a place and the leaves below it: the half below it is never cut short.
    fn height(self, place: u32) -> u32 {
        if place == 0 { self.depth() } else { place.trailing_zeros() }
    }

    /// Three rounds for each level of heights: the lower child, the upper one, and adding what that one sent.
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
