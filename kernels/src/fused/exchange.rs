//! What members compute: for every block of every result, the blocks that it comes from.

use super::formula::Formula;
use crate::{DType, ReduceOp};
use allfold_base::hash::{GOLDEN, finalize};
use std::ops::Range;

/// Which member ends with what. Sources and results consist of blocks of one size.
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
    /// Every result but the root's is the root's source: one block each.
    Broadcast,
    /// Every result is all sources, in order.
    AllGather,
    /// The root's result is all sources, in order.
    Gather,
    /// The root's source has one block per member; the result of member p is block p.
    Scatter,
    /// Block q of the result of member p is block p of the source of member q.
    AllToAll,
    /// The result of member p is the source of the member before it; before member 0 is the last.
    Shift,
}

/// Where a block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum From {
    /// A block of one source.
    Copy { member: u32, block: usize },
    /// The reduction of that block of all sources.
    Reduce { block: usize },
}

/// A block, and the blocks of results that it becomes: (member, block of its result).
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub from: From,
    pub to: Vec<(u32, usize)>,
}

/// One computation of all members. Build it once and run it as often as needed.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub(super) pattern: Pattern,
    pub(super) members: u32,
    pub(super) root: u32,
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    /// The bytes of a block.
    pub(super) block: usize,
    pub(super) routes: Vec<Route>,
    /// Which tree reduces which bytes of a source.
    pub(super) formulas: Vec<(Range<usize>, Formula)>,
    /// Blocks of scratch that the formulas need.
    pub(super) slots: usize,
    /// The most blocks that any source has.
    pub(super) most_blocks: usize,
    /// A hash of the arguments, compared between members.
    pub(super) digest: u64,
}

/// Mixes a word into a hash.
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    finalize(hash.wrapping_add(GOLDEN) ^ word)
}

impl Exchange {
    /// An exchange of `members` members over blocks of `count` elements. `formulas` says, for ranges of the elements
    /// of a source, by which tree they are reduced; it is ignored if nothing is reduced. An average is
    /// divided once, after its sum.
    ///
    /// # Panics
    /// Mistakes of the caller: no members, a root that is not a member, a formula that names a member that does not exist,
    /// formulas that do not cover a source from start to end.
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
        let routes = routes(pattern, members, root);
        let mut exchange = Exchange {
            pattern,
            members,
            root,
            dtype,
            op,
            block,
            routes,
            formulas,
            slots,
            most_blocks: 0,
            digest,
        };
        exchange.most_blocks = (0..members).map(|member| exchange.source_blocks(member)).max().unwrap_or(0);
        exchange
    }

    /// Number of blocks in the source of a member.
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

    /// Number of blocks in the result of a member.
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

    /// Whether a large exchange is divided into ranges of its blocks, so that members that only give or only take work too.
    /// Otherwise every member computes its own result.
    pub(super) fn is_shared_out(&self) -> bool {
        !matches!(
            self.pattern,
            Pattern::ReduceScatter | Pattern::AllGather | Pattern::AllToAll | Pattern::Shift
        )
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

fn routes(pattern: Pattern, members: u32, root: u32) -> Vec<Route> {
    let all = || (0..members).map(|member| (member, 0)).collect::<Vec<_>>();
    let each = |f: &dyn Fn(u32) -> Route| (0..members).map(f).collect::<Vec<_>>();
    let place = |member: u32| member as usize;
    match pattern {
        Pattern::Meet => Vec::new(),
        Pattern::AllReduce => vec![Route { from: From::Reduce { block: 0 }, to: all() }],
        Pattern::Reduce => vec![Route { from: From::Reduce { block: 0 }, to: vec![(root, 0)] }],
        Pattern::ReduceScatter => {
            each(&|p| Route { from: From::Reduce { block: place(p) }, to: vec![(p, 0)] })
        }
        Pattern::Broadcast => {
            let others = all().into_iter().filter(|(member, _)| *member != root).collect();
            vec![Route { from: From::Copy { member: root, block: 0 }, to: others }]
        }
        Pattern::AllGather => each(&|q| Route {
            from: From::Copy { member: q, block: 0 },
            to: (0..members).map(|p| (p, place(q))).collect(),
        }),
        Pattern::Gather => {
            each(&|q| Route { from: From::Copy { member: q, block: 0 }, to: vec![(root, place(q))] })
        }
        Pattern::Scatter => {
            each(&|p| Route { from: From::Copy { member: root, block: place(p) }, to: vec![(p, 0)] })
        }
        Pattern::AllToAll => {
            let pair = |p: u32, q: u32| Route {
                from: From::Copy { member: q, block: place(p) },
                to: vec![(p, place(q))],
            };
            (0..members).flat_map(|p| (0..members).map(move |q| pair(p, q))).collect()
        }
        Pattern::Shift => each(&|p| Route {
            from: From::Copy { member: (p + members - 1) % members, block: 0 },
            to: vec![(p, 0)],
        }),
    }
}
