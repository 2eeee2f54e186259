//! The collectives, each defined by a row of [`crate::meaning`].

use crate::meaning::{MEANINGS, Meaning, Moves, On, Portion, Value};
use std::fmt;

/// The operation that a schedule computes. Here `n` is the number of ranks, and a block is one of `n` equal parts of the whole
/// buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Collective {
    /// Every rank ends with the reduction over all ranks of the whole buffer.
    AllReduce,
    /// Every rank ends with the root's buffer.
    Broadcast,
    /// Rank r contributes block r; every rank ends with all blocks.
    AllGather,
    /// Rank r ends with the reduction over all ranks of block r.
    ReduceScatter,
    /// The root ends with the reduction over all ranks of the whole buffer.
    Reduce,
    /// Rank r contributes block r; the root ends with all blocks.
    Gather,
    /// Rank r ends with the root's block r.
    Scatter,
    /// Rank r's block s becomes rank s's block r.
    AllToAll,
    /// Every rank waits until all ranks have entered. Carries no data.
    Barrier,
    /// Every rank sends its buffer to the next rank and receives the previous rank's buffer (sendrecv in nccl-tests).
    SendRecv,
}

impl Collective {
    /// Every collective, in the order of their numbers on the wire.
    pub const ALL: [Collective; 10] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Barrier,
        Collective::SendRecv,
    ];

    /// The collective's row in the table of [`crate::meaning`].
    #[inline]
    pub const fn meaning(self) -> &'static Meaning {
        &MEANINGS[self as usize]
    }

    /// The collective's name on the command line and in records: `all_reduce`, ...
    pub const fn name(self) -> &'static str {
        self.meaning().name
    }

    /// Whether the collective combines elements by an operator (sum, product, ..).
    #[inline]
    pub const fn reduces(self) -> bool {
        FACTS[self as usize].reduces
    }

    /// Whether the collective has a root.
    #[inline]
    pub const fn rooted(self) -> bool {
        FACTS[self as usize].rooted
    }

    /// Whether the buffer consists of one equal block per rank, so that its total count is `n` times a block's.
    #[inline]
    pub const fn blocked(self) -> bool {
        FACTS[self as usize].blocked
    }

    /// Whether a call can use a single buffer for a rank's input and its output.
    #[inline]
    pub const fn in_place(self) -> bool {
        !self.blocked()
    }

    /// Whether a call can take a rank's input from one buffer and put the output into another.
    #[inline]
    pub const fn out_of_place(self) -> bool {
        self.meaning().out_of_place
    }

    /// The factor by which busbw = algbw x factor, as in nccl-tests (doc/PERFORMANCE.md there).
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self.meaning().moves {
            Moves::Reduction => 2.0 * (n - 1.0) / n,
            Moves::Others | Moves::Pairs => (n - 1.0) / n,
            Moves::Whole => 1.0,
            Moves::Nothing => 0.0,
        }
    }
}

/// Facts that follow from a row of [`crate::meaning`]. They are computed at compile time, because every call reads them.
#[derive(Clone, Copy)]
struct Facts {
    reduces: bool,
    rooted: bool,
    blocked: bool,
}

const FACTS: [Facts; MEANINGS.len()] = {
    let mut facts = [Facts { reduces: false, rooted: false, blocked: false }; MEANINGS.len()];
    let mut at = 0;
    while at < facts.len() {
        let Meaning { input, output, value, .. } = &MEANINGS[at];
        let (of_root, all) = (matches!(value, Value::Root), (input.part, output.part));
        facts[at] = Facts {
            reduces: matches!(value, Value::Reduced),
            rooted: of_root || matches!(input.on, On::Root) || matches!(output.on, On::Root),
            blocked: matches!(
                all,
                (Portion::Block | Portion::Blocks, _) | (_, Portion::Block | Portion::Blocks)
            ),
        };
        at += 1;
    }
    facts
};

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_of_the_collective_at_its_place() {
        assert_eq!(MEANINGS.len(), Collective::ALL.len());
        for (at, collective) in Collective::ALL.into_iter().enumerate() {
            assert_eq!(collective as usize, at);
            let spelled = format!("{collective:?}").to_lowercase();
            assert_eq!(collective.name().replace('_', ""), spelled);
            assert_eq!(collective.meaning().nccl_tests.replace('_', ""), spelled);
        }
    }

    #[test]
    fn derived_facts_are_those_of_mpi() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        let all = |holds: fn(Collective) -> bool| {
            Collective::ALL.into_iter().filter(|collective| holds(*collective)).collect::<Vec<_>>()
        };
        assert_eq!(all(Collective::reduces), [AllReduce, ReduceScatter, Reduce]);
        assert_eq!(all(Collective::rooted), [Broadcast, Reduce, Gather, Scatter]);
        assert_eq!(all(Collective::blocked), [AllGather, ReduceScatter, Gather, Scatter, AllToAll]);
    }
}
