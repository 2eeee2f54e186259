//! What a process runs out of where it holds many connections: descriptors.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;

/// Whether this is what the system said for want of a descriptor.
pub(crate) fn are_out(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// How many this process may have.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
