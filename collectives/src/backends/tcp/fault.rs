//! The faults of a connection to a peer.

use crate::contract::Fingerprint;
use crate::{Error, Rank};
use std::io::ErrorKind;

/// What is wrong with a connection.
#[derive(Debug)]
pub(super) enum Fault {
    /// The connection ended or broke.
    Ended(String),
    /// The connection ended in the middle of a frame.
    Truncated,
    /// The peer made another call. The fields are the number of the peer's operation, and its call.
    Disagree(u64, Fingerprint),
    /// The peer is at this later operation, and messages of this rank's operation are missing.
    Ahead(u64),
    /// A frame is invalid or not the frame that the schedule expects, or bytes to be sent were never written.
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

/// Why this rank has no connection to another, as the predicate of a sentence about that rank: `could not be reached: ..`.
pub(super) fn unreached(error: &Error) -> String {
    match error {
        Error::Refused { why, .. } => format!("could not be reached: {why}"),
        Error::Missing { after, .. } => format!("did not answer within {after:?}"),
        Error::AuthFailed { .. } => "holds another secret than this rank".into(),
        other => format!("could not be reached: {other}"),
    }
}

/// Why a rank cannot join, as the other ranks print it.
pub(super) fn not_joined(rank: Rank, error: &Error) -> String {
    match error {
        Error::AuthFailed { peer } => format!("rank {peer} holds another secret than rank {rank}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lost;
    use std::time::Duration;

    #[test]
    fn a_rank_that_is_not_reached_is_said_to_be_lost_in_a_sentence() {
        let said = |error: Error| {
            let cause = Lost::Disconnected(unreached(&error));
            Error::lost(Rank(3), cause, None).to_string()
        };
        let why = "this process may not open more than 30 descriptors".to_string();
        assert_eq!(
            said(Error::Refused { peer: Rank(3), why }),
            "rank 3 is lost: it could not be reached: this process may not open more than 30 descriptors"
        );
        let after = Duration::from_secs(20);
        let late = said(Error::Missing { missing: vec![Rank(3)], after });
        assert_eq!(late, "rank 3 is lost: it did not answer within 20s");
        let secret = said(Error::AuthFailed { peer: Rank(3) });
        assert_eq!(secret, "rank 3 is lost: it holds another secret than this rank");
    }
}
