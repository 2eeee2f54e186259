//! The definition of each collective as a row of a table, which the checker of schedules, the bounds of time, the communicators, the
//! tests and the benchmarks all read.
//!
//! A new collective needs a variant of [`crate::Collective`], a row in this table, an algorithm with its row in the registry, and a
//! method of the communicator.

/// The definition of a collective. `n` is the number of ranks; a block is one of `n` equal parts of the whole buffer.
#[derive(Debug)]
pub struct Meaning {
    /// The collective's name on the command line and in records.
    pub name: &'static str,
    /// The collective's name in nccl-tests, without `_perf`.
    pub nccl_tests: &'static str,
    /// What a rank contributes.
    pub input: Side,
    /// What a rank ends with.
    pub output: Side,
    /// The value of an element of the output.
    pub value: Value,
    /// Whether a call can have separate input and output buffers.
    pub out_of_place: bool,
    /// The data that any algorithm must move, for bounds and busbw.
    pub moves: Moves,
}

/// A part of the whole buffer, on certain ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// The part of the whole buffer.
    pub part: Portion,
    /// The ranks that have this part. The data of all other ranks are undefined.
    pub on: On,
}

/// A part of the whole buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portion {
    /// No data.
    Nothing,
    /// The whole buffer, for collectives without blocks.
    Whole,
    /// The rank's own block.
    Block,
    /// The blocks of all ranks.
    Blocks,
}

/// A set of ranks, for inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Every rank.
    All,
    /// The root.
    Root,
}

/// The value of an element of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The reduction of that element over all ranks.
    Reduced,
    /// The root's element.
    Root,
    /// The element of the rank that owns the block.
    Owner,
    /// Rank r's block s is rank s's block r.
    Exchanged,
    /// The previous rank's element; for rank 0 the last rank's element.
    Previous,
    /// No value: the collective ends on a rank once every rank has entered it.
    Heard,
}

/// The data that any algorithm for a collective must move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// No data.
    Nothing,
    /// The whole buffer, into or out of every group of ranks.
    Whole,
    /// The whole buffer moves to where it is reduced, and the result moves back.
    Reduction,
    /// The blocks of the other ranks.
    Others,
    /// A block between every two ranks.
    Pairs,
}

const fn on(part: Portion, on: On) -> Side {
    Side { part, on }
}

/// The definitions of all collectives, in the order of [`crate::Collective::ALL`].
pub(crate) const MEANINGS: [Meaning; 10] = [
    Meaning {
        name: "all_reduce",
        nccl_tests: "all_reduce",
        input: on(Portion::Whole, On::All),
        output: on(Portion::Whole, On::All),
        value: Value::Reduced,
        out_of_place: true,
        moves: Moves::Reduction,
    },
    Meaning {
        name: "broadcast",
        nccl_tests: "broadcast",
        input: on(Portion::Whole, On::Root),
        output: on(Portion::Whole, On::All),
        value: Value::Root,
        out_of_place: false,
        moves: Moves::Whole,
    },
    Meaning {
        name: "all_gather",
        nccl_tests: "all_gather",
        input: on(Portion::Block, On::All),
        output: on(Portion::Blocks, On::All),
        value: Value::Owner,
        out_of_place: true,
        moves: Moves::Others,
    },
    Meaning {
        name: "reduce_scatter",
        nccl_tests: "reduce_scatter",
        input: on(Portion::Blocks, On::All),
        output: on(Portion::Block, On::All),
        value: Value::Reduced,
        out_of_place: true,
        moves: Moves::Others,
    },
    Meaning {
        name: "reduce",
        nccl_tests: "reduce",
        input: on(Portion::Whole, On::All),
        output: on(Portion::Whole, On::Root),
        value: Value::Reduced,
        out_of_place: false,
        moves: Moves::Whole,
    },
    Meaning {
        name: "gather",
        nccl_tests: "gather",
        input: on(Portion::Block, On::All),
        output: on(Portion::Blocks, On::Root),
        value: Value::Owner,
        out_of_place: true,
        moves: Moves::Others,
    },
    Meaning {
        name: "scatter",
        nccl_tests: "scatter",
        input: on(Portion::Blocks, On::Root),
        output: on(Portion::Block, On::All),
        value: Value::Root,
        out_of_place: true,
        moves: Moves::Others,
    },
    Meaning {
        name: "all_to_all",
        nccl_tests: "alltoall",
        input: on(Portion::Blocks, On::All),
        output: on(Portion::Blocks, On::All),
        value: Value::Exchanged,
        out_of_place: true,
        moves: Moves::Pairs,
    },
    Meaning {
        name: "barrier",
        nccl_tests: "barrier",
        input: on(Portion::Nothing, On::All),
        output: on(Portion::Nothing, On::All),
        value: Value::Heard,
        out_of_place: false,
        moves: Moves::Nothing,
    },
    Meaning {
        name: "send_recv",
        nccl_tests: "sendrecv",
        input: on(Portion::Whole, On::All),
        output: on(Portion::Whole, On::All),
        value: Value::Previous,
        out_of_place: false,
        moves: Moves::Whole,
    },
];
