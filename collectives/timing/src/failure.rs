//! The failure that surviving ranks report after a fault: the culprit, its round and the cause, at a virtual time.

use allfold_schedules::schedule::Rank;
use allfold_sim::Picos;
use std::fmt;

/// The failure of a collective that some rank cannot finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank or the path that caused the failure.
    pub culprit: Culprit,
    /// Why the collective fails.
    pub cause: Cause,
    /// A rank that reports the failure: a rank that waits for the culprit, or the culprit itself if it is late.
    pub told: Rank,
    /// The round of the oldest step that rank `told` cannot finish.
    pub round: u64,
    /// When rank `told` reports the failure; `None` if there is no deadline, so that it would wait for ever.
    pub at: Option<Picos>,
}

/// The culprit of a failure: a rank or a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// A rank that is to blame.
    Rank(Rank),
    /// The path from one rank to another.
    Path {
        /// The sender on the path.
        from: Rank,
        /// The receiver on the path.
        to: Rank,
    },
}

/// Why a collective fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The rank died at this time.
    Died(Picos),
    /// The message was lost.
    Lost,
    /// The message's checksum does not match its bytes.
    Corrupted,
    /// No message passes on this path any more.
    Partitioned,
    /// The operation takes longer than the deadline.
    Late,
}

impl Culprit {
    /// Whether the culprit is `rank`, or a path from or to `rank`.
    pub fn names(&self, rank: Rank) -> bool {
        match *self {
            Culprit::Rank(named) => named == rank,
            Culprit::Path { from, to } => from == rank || to == rank,
        }
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Culprit::Rank(rank) => write!(f, "rank {rank}"),
            Culprit::Path { from, to } => write!(f, "the path from rank {from} to rank {to}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { culprit, cause, told, round, at } = self;
        match cause {
            Cause::Died(at) => write!(f, "{culprit} is lost: it died at {at}")?,
            Cause::Lost => write!(f, "{culprit} lost a message")?,
            Cause::Corrupted => write!(f, "{culprit} damaged a message: its checksum does not match")?,
            Cause::Partitioned => write!(f, "{culprit} is cut")?,
            Cause::Late => write!(f, "{culprit} is late")?,
        }
        write!(f, "; rank {told} cannot finish round {round}, and is told ")?;
        match at {
            Some(at) => write!(f, "at {at}"),
            None => write!(f, "never: there is no deadline"),
        }
    }
}
