//! The contributions of ranks to collectives and messages in the NCCL stand-in.

use std::ffi::c_int;
use std::sync::Arc;

/// The parameters of a collective, on which all ranks must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub kind: &'static str,
    /// The bytes that each rank contributes.
    pub bytes: usize,
    pub dtype: c_int,
    pub op: c_int,
    pub root: usize,
}

/// A rank's contribution to a collective: the parameters, whether a graph runs the call, the input.
pub(super) type Entry = (Said, bool, Arc<Vec<u8>>);

/// A connection: from one rank to another, or among all ranks, for the algorithm of small collectives or for that of large ones; or the
/// registration of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Link {
    Pair {
        from: usize,
        to: usize,
    },
    /// The connections of all ranks for small collectives, or those for large collectives.
    All {
        large: bool,
    },
    /// The registration of this number, of buffers of all ranks: a window, or a captured call's.
    Registered {
        nth: usize,
    },
}

/// A change of the ranks' common state, by one rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// The rank has joined, on this GPU and with so many blocks.
    Joined([u8; 16], u32),
    /// The rank has aborted, died or was destroyed.
    Gone,
    /// The rank calls for a connection.
    Calls(Link),
    /// The rank contributes to the collective of this number.
    Begins(u64, Entry),
    /// The rank sends a message to another one.
    Sends(usize, Vec<u8>),
    /// The rank has received a message of another one.
    Takes(usize),
    /// The rank's colour and key in the split of this number.
    Splits(usize, i32, i32),
}

/// The contributions of all ranks to a collective, and the number of ranks that have taken their result.
pub(super) struct Gathering {
    pub entries: Vec<Option<Entry>>,
    pub taken: usize,
}
