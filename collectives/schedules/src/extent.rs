//! The elements of a collective's buffer that each rank contributes, and the elements that each rank ends with.

use crate::meaning::{On, Portion, Side};
use crate::{Collective, Rank};
use std::ops::Range;

/// The sizes of one call, from which the ranges of a rank's input and output follow.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The collective of the call.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// The root, for collectives that have one.
    pub root: Rank,
    /// The number of elements of the whole buffer, or of one block if the collective has blocks.
    pub count: usize,
}

impl Extent {
    /// The number of elements of the whole buffer.
    pub fn whole(&self) -> usize {
        if self.collective.blocked() { self.ranks as usize * self.count } else { self.count }
    }

    /// The range of a rank's own block in the whole buffer.
    pub fn block(&self, rank: Rank) -> Range<usize> {
        rank.index() * self.count..(rank.index() + 1) * self.count
    }

    /// The range of the whole buffer that a rank contributes.
    pub fn input(&self, rank: Rank) -> Range<usize> {
        self.range(self.collective.meaning().input, rank)
    }

    /// The range of the whole buffer that a rank ends with. All other elements are undefined.
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
    fn a_row_determines_a_ranks_input_and_output() {
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
