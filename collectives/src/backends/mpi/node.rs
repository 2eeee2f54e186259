//! The state that the parts of one process of an MPI job share.

use crate::transport::Pool;
use std::path::PathBuf;
use std::time::Duration;

/// The options of ranks in an MPI job.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long an operation may take.
    pub deadline: Duration,
    /// Whether MPI's own collective runs where the caller names no algorithm: with MPI's speed, and in MPI's order of additions.
    pub native: bool,
    /// The folder of the flight record, written when an operation fails.
    pub flight: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options { deadline: Duration::from_secs(300), native: false, flight: None }
    }
}

/// The state that the parts of this process share.
pub(super) struct Node {
    pub options: Options,
    pub pool: Pool,
}

/// Sleeps before MPI is checked again.
#[allow(clippy::disallowed_methods, reason = "MPI has no event to wait for but by looking again and again")]
pub(super) fn nap(length: Duration) {
    std::thread::sleep(length);
}
