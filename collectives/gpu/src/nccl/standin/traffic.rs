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

/// The contributions of all ranks to a collective, and the number of ranks that have taken their result.
pub(super) struct Gathering {
    pub entries: Vec<Option<Entry>>,
    pub taken: usize,
}
