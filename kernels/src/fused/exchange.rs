//! The computation of an exchange: for every block of every result, the source blocks from which it is computed.

use super::formula::Formula;
use crate::{DType, ReduceOp};
use allfold_base::hash::{GOLDEN, finalize};
use std::ops::Range;

/// A pattern of data movement between members. Sources and results consist of blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pattern {
    /// A barrier: no data are moved.
    Meet,
    /// Every result is the reduction of all sources: one block each.
    AllReduce,
    /// The root's result is the reduction of all sources: one block each.
    Reduce,
    /// Sources have one block per member; the result of member p is the reduction of their blocks p.
    ReduceScatter,
    /// Every result except the root's is the root's source: one block each.
    Broadcast,
    /// Every result is all sources, in order.
    AllGather,
    /// The root's result is all sources, in order.
    Gather,
    /// The root's source has one block per member; the result of member p is block p.
    Scatter,
    /// Block q of the result of member p is block p of the source of member q.
    AllToAll,
    /// The result of member p is the source of member p - 1; the result of member 0 is the source of the last member.
    Shift,
}

/// The origin of a result's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum From {
    /// A copy of a block of one member's source.
    Copy { member: u32, block: usize },
    /// The reduction of block `block` of all sources.
    Reduce { block: usize },
}

/// An origin, and the result blocks that are computed from it: block `block` of the results of the members `first..end` but `except`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub from: From,
    first: u32,
    end: u32,
    except: Option<u32>,
    pub block: usize,
}

impl Route {
    /// The members among `within` whose results have the block.
    pub fn members(self, within: &Range<u32>) -> impl Iterator<Item = u32> + use<> {
        let Route { first, end, except, .. } = self;
        (first.max(within.start)..end.min(within.end)).filter(move |member| Some(*member) != except)
    }
}

/// A computation in which all members take part. It is built once and can be run any number of times.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub(super) pattern: Pattern,
    pub(super) members: u32,
    pub(super) root: u32,
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    /// The size of a block in bytes.
    pub(super) block: usize,
    /// The reduction tree of each range of a source's bytes.
    pub(super) formulas: Vec<(Range<usize>, Formula)>,
    /// The number of scratch blocks that the formulas need.
    pub(super) slots: usize,
    /// The number of blocks of the largest source.
    pub(super) most_blocks: usize,
    /// A hash of the arguments other than the formulas, compared between members.
    pub(super) digest: u64,
}

/// Mixes a word into a hash.
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    finalize(hash.wrapping_add(GOLDEN) ^ word)
}

impl Exchange {
    /// An exchange of `members` members over blocks of `count` elements. `formulas` gives the reduction tree of each range of a
    /// source's elements; it is ignored by patterns that reduce nothing. An average is divided once, after its sum.
    ///
    /// # Panics
    /// If there are no members, the root is not a member, a formula names a member that does not exist, or the formulas do not
    /// cover a source from start to end.
    #[track_caller]
    pub fn new(
        pattern: Pattern,
        members: u32,
        root: u32,
        (dtype, op): (DType, ReduceOp),
        count: usize,
        formulas: Vec<(Range<usize>, Formula)>,
    ) -> Exchange {
        assert!(root < members, "member {root} of {members} cannot be the root");
        let block = count * dtype.size();
        let reduces = matches!(pattern, Pattern::AllReduce | Pattern::Reduce | Pattern::ReduceScatter);
        let blocks = if pattern == Pattern::ReduceScatter { members as usize } else { 1 };
        let mut end = 0;
        if reduces {
            for (range, formula) in &formulas {
                assert!(range.start == end && range.end >= end, "formulas must cover a source in order");
                assert!(formula.last < members, "a formula names member {} of {members}", formula.last);
                end = range.end;
            }
            assert_eq!(end, count * blocks, "formulas must cover a source to its end");
        }
        let bytes = |(range, formula): (Range<usize>, Formula)| {
            (range.start * dtype.size()..range.end * dtype.size(), formula)
        };
        let formulas: Vec<_> =
            formulas.into_iter().map(bytes).filter(|(range, _)| !range.is_empty()).collect();
        let slots = formulas.iter().map(|(_, formula)| formula.slots).max().unwrap_or(0).max(1);
        let words = [pattern as u64, members.into(), root.into(), dtype as u64, op as u64, block as u64];
        let digest = words.into_iter().fold(0, mix);
        let mut exchange =
            Exchange { pattern, members, root, dtype, op, block, formulas, slots, most_blocks: 0, digest };
        exchange.most_blocks = (0..members).map(|member| exchange.source_blocks(member)).max().unwrap_or(0);
        exchange
    }

    /// The number of blocks in a member's source.
    pub(super) fn source_blocks(&self, member: u32) -> usize {
        let all = self.members as usize;
        match self.pattern {
            Pattern::Meet => 0,
            Pattern::Broadcast => usize::from(member == self.root),
            Pattern::Scatter if member == self.root => all,
            Pattern::Scatter => 0,
            Pattern::ReduceScatter | Pattern::AllToAll => all,
            _ => 1,
        }
    }

    /// The number of blocks in a member's result.
    pub(super) fn result_blocks(&self, member: u32) -> usize {
        let all = self.members as usize;
        match self.pattern {
            Pattern::Meet => 0,
            Pattern::Broadcast => usize::from(member != self.root),
            Pattern::Reduce => usize::from(member == self.root),
            Pattern::Gather if member == self.root => all,
            Pattern::Gather => 0,
            Pattern::AllGather | Pattern::AllToAll => all,
            _ => 1,
        }
    }

    /// Whether the source and the result of a member may be one buffer.
    pub(super) fn may_be_in_place(&self) -> bool {
        !matches!(self.pattern, Pattern::Gather | Pattern::Scatter | Pattern::AllToAll | Pattern::Shift)
    }

    /// Whether a large exchange is divided into ranges of its blocks, one for each member to compute, even if the member has no
    /// source or no result. Otherwise every member computes its own result.
    pub(super) fn is_shared_out(&self) -> bool {
        !matches!(
            self.pattern,
            Pattern::ReduceScatter | Pattern::AllGather | Pattern::AllToAll | Pattern::Shift
        )
    }

    /// All routes, one after another, without a list, whose memory would be the square or the cube of the number of members.
    pub(super) fn routes(&self) -> impl Iterator<Item = Route> {
        let all = self.members as usize;
        let count = match self.pattern {
            Pattern::Meet => 0,
            Pattern::AllReduce | Pattern::Reduce | Pattern::Broadcast => 1,
            Pattern::AllToAll => all * all,
            _ => all,
        };
        (0..count).map(|at| self.route(at))
    }

    fn route(&self, at: usize) -> Route {
        let (all, root, own) = (self.members, self.root, at as u32);
        let copy = |member: u32, block: usize| From::Copy { member, block };
        let one =
            |from, member: u32, block| Route { from, first: member, end: member + 1, except: None, block };
        let every = |from, except, block| Route { from, first: 0, end: all, except, block };
        match self.pattern {
            Pattern::AllReduce | Pattern::Meet => every(From::Reduce { block: 0 }, None, 0),
            Pattern::Reduce => one(From::Reduce { block: 0 }, root, 0),
            Pattern::ReduceScatter => one(From::Reduce { block: at }, own, 0),
            Pattern::Broadcast => every(copy(root, 0), Some(root), 0),
            Pattern::AllGather => every(copy(own, 0), None, at),
            Pattern::Gather => one(copy(own, 0), root, at),
            Pattern::Scatter => one(copy(root, at), own, 0),
            Pattern::AllToAll => {
                let (p, q) = (at / all as usize, at % all as usize);
                one(copy(q as u32, p), p as u32, q)
            }
            Pattern::Shift => one(copy((own + all - 1) % all, 0), own, 0),
        }
    }

    /// Byte offsets of a member's source and result within one buffer that holds both.
    pub(super) fn offsets(&self, member: u32) -> (usize, usize) {
        let own = member as usize * self.block;
        match self.pattern {
            Pattern::AllGather => (own, 0),
            Pattern::ReduceScatter => (0, own),
            _ => (0, 0),
        }
    }
}
