//! The canonical reduction tree: first the n - 2^k pairs of ranks, then a balanced binary tree over neighbouring blocks.
//!
//! ```text
//! 6 ranks     0   1   2   3   4   5
//!             0---+   2---+   4   5      the pairs
//!             0-------+       4---+      level 0
//!             0---------------+          level 1
//! ```
//!
//! Each merge reduces one block's value into the other's, on the lower rank. In the block that contains the root, the root stores the
//! value. The root can therefore be any rank, and the tree is the same for every root.

use crate::schedule::Pairs;

/// The canonical reduction tree of `pairs.ranks` ranks, with its result at `root`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Balanced {
    pub pairs: Pairs,
    pub root: u32,
}

impl Balanced {
    pub fn new(ranks: u32, root: u32) -> Balanced {
        Balanced { pairs: Pairs::of(ranks), root }
    }

    /// The rank that holds the value of the block of 2^level positions that contains position `place`.
    pub fn holder(self, level: u32, place: u32) -> u32 {
        let same = self.pairs.place(self.root) >> level == place >> level;
        if same { self.root } else { self.pairs.first(place >> level << level) }
    }

    /// Merge number `nth` of the n - 1 merges, counted level by level: the rank that keeps the result, and the rank whose value
    /// is reduced into it.
    pub fn merge(self, nth: u32) -> (u32, u32) {
        if nth < self.pairs.pairs {
            let into = self.holder(0, nth);
            return (into, into ^ 1);
        }
        let left = self.pairs.core - 1 - (nth - self.pairs.pairs);
        let above = left.ilog2();
        let level = self.pairs.levels() - 1 - above;
        let place = ((2 << above) - 1 - left) << (level + 1);
        let (low, high) = (self.holder(level, place), self.holder(level, place + (1 << level)));
        if self.holder(level + 1, place) == high { (high, low) } else { (low, high) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_leave_everything_at_the_root() {
        for ranks in 1..=40 {
            for root in 0..ranks {
                let tree = Balanced::new(ranks, root);
                let mut held = vec![true; ranks as usize];
                for (into, from) in (0..ranks - 1).map(|nth| tree.merge(nth)) {
                    assert!(held[into as usize], "{ranks} ranks: {into} was merged away");
                    assert!(
                        std::mem::replace(&mut held[from as usize], false),
                        "{ranks} ranks: {from} twice"
                    );
                }
                assert!(held[root as usize]);
            }
        }
    }
}
