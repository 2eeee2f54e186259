//! Which elements of a collective's buffer each rank gives, and which it ends with.

use crate::meaning::{On, Portion, Side};
use crate::{Collective, Rank};
use std::ops::Range;

/// The sizes of one call: which elements of the whole buffer a rank gives, and which it ends with.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Which collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// The root, where there is one.
    pub root: Rank,
    /// Elements: of the whole buffer, or of one block where the collective is made of blocks.
    pub count: usize,
}

impl Extent {
    /// Elements of the whole buffer.
    pub fn whole(&self) -> usize {
        if self.collective.blocked() { self.ranks as usize * self.count } else { self.count }
    }

    /// Where a rank's own block lies in the whole buffer.
    pub fn block(&self, rank: Rank) -> Range<usize> {
        rank.index() * self.count..(rank.index() + 1) * self.count
    }

    /// The elements of the whole buffer that a rank gives.
    pub fn input(&self, rank: Rank) -> Range<usize> {
        self.range(self.collective.meaning().input, rank)
    }

    /// The elements of the whole buffer that a rank ends with. All others are undefined.
    pub fn output(&self, rank: Rank) -> Range<usize> {
        self.range(self.collective.meaning().output, rank)
    }

    fn range(&self, side: Side, rank: Rank) -> Range<usize> {
        match side.part {
            _ if side.on == On::Root && rank != self.root => 0..0,
            Portion::Nothing => 0..0,
            Portion::Block => self.block(rank),
            Portion::Whole | Portion::Blocks => 0..self.whole(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_gives_and_ends_with_follows_from_the_row() {
        let extent = |collective| Extent { collective, ranks: 4, root: Rank(2), count: 5 };
        let sides = |collective, rank| {
            let extent = extent(collective);
            (extent.input(Rank(rank)), extent.output(Rank(rank)))
        };
        assert_eq!(sides(Collective::AllGather, 3), (15..20, 0..20));
        assert_eq!(sides(Collective::Gather, 3), (15..20, 0..0));
        assert_eq!(sides(Collective::Gather, 2), (10..15, 0..20));
        assert_eq!(sides(Collective::Scatter, 1), (0..0, 5..10));
        assert_eq!(sides(Collective::Reduce, 1), (0..5, 0..0));
        assert_eq!(sides(Collective::Barrier, 1), (0..0, 0..0));
        assert_eq!((extent(Collective::AllToAll).whole(), extent(Collective::Broadcast).whole()), (20, 5));
    }
}
