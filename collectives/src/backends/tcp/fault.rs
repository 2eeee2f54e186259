//! Why a connection to a peer failed.

use crate::contract::Fingerprint;
use std::io::ErrorKind;

/// The cause of the failure.
#[derive(Debug)]
pub(super) enum Fault {
    /// The connection ended or broke.
    Ended(String),
    /// The connection ended in the middle of a frame.
    Truncated,
    /// The peer made another call: the number of its operation, and the call.
    Disagree(u64, Fingerprint),
    /// The peer is at this later operation, and messages of this one are missing.
    Ahead(u64),
    /// A frame that the schedule does not expect.
    Wrong(String),
}

/// The fault of a connection that the system has ended.
pub(super) fn ended(error: std::io::Error) -> Fault {
    match error.kind() {
        ErrorKind::UnexpectedEof => Fault::Ended("closed the connection".into()),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Fault::Ended("reset the connection".into()),
        _ => Fault::Ended(format!("broke the connection: {error}")),
    }
}
