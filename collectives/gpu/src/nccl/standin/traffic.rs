//! What ranks put into collectives and messages.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a collective is; all ranks must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub kind: &'static str,
    /// Bytes that each rank puts in.
    pub bytes: usize,
    pub dtype: c_int,
    pub op: c_int,
    pub root: usize,
}

/// A rank's part of a collective: the call, whether a graph runs it, its input.
pub(super) type Entry = (Said, bool, Arc<Vec<u8>>);

/// The entries of all ranks, and how many have taken their result.
pub(super) struct Gathering {
    pub entries: Vec<Option<Entry>>,
    pub taken: usize,
}

/// A message on its way, and whether it has been received.
pub(super) struct SentMessage {
    pub bytes: Vec<u8>,
    pub taken: Arc<AtomicBool>,
}
