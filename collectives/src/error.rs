//! What can go wrong with a collective: who is to blame, in which operation, in which round, and why.

use crate::{Call, Rank};
use std::fmt;
use std::time::Duration;

/// The result of anything that communicates.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a collective did not give a result. The first error of a group reaches all of its ranks; ranks are numbers
/// in that group.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call itself cannot be right: a length, a root, a name. Nothing was sent; the communicator stays usable.
    #[error("{0}")]
    Argument(String),
    /// A rank is gone while others still call on it.
    #[error("rank {rank} is lost: it {cause}{}", during(.call))]
    PeerLost {
        /// Who is gone.
        rank: Rank,
        /// How it went.
        cause: Lost,
        /// The operation that needed it, where one did.
        call: Option<Box<Call>>,
    },
    /// Two ranks made different calls in the same place of the sequence.
    #[error("ranks disagree: rank {rank} called {mine}, but rank {peer} called {theirs}")]
    Mismatch {
        /// The rank that called `mine`: this one, if it is one of the two.
        rank: Rank,
        /// What `rank` called.
        mine: Box<Call>,
        /// The rank that called otherwise.
        peer: Rank,
        /// What `peer` called.
        theirs: Box<Call>,
    },
    /// An operation was not done in time.
    #[error("{}", late(.rank, .waiting_on, *.entered, .call, *.round, .after))]
    DeadlineExceeded {
        /// Whose time ran out first.
        rank: Rank,
        /// Whom it was waiting for.
        waiting_on: Vec<Rank>,
        /// Whether those had entered the operation at all.
        entered: bool,
        /// The operation.
        call: Box<Call>,
        /// The round of the oldest unfinished step.
        round: u64,
        /// The deadline.
        after: Duration,
    },
    /// What NCCL was given was not done in time. It does not say who is late.
    #[error("deadline of {after:?} exceeded by rank {rank}: NCCL could not {what}; the cause is {}", suspected(.suspects))]
    NcclDeadline {
        /// Whose time ran out.
        rank: Rank,
        /// What it was about to do.
        what: String,
        /// Whom it may have waited for; nobody but the device where there is no other rank.
        suspects: Vec<Rank>,
        /// The deadline.
        after: Duration,
    },
    /// A GPU did not do in time what it was given, by other ways than NCCL.
    #[error("deadline of {after:?} exceeded by rank {rank}: the GPU did not {what}; the cause is {}", suspected(.suspects))]
    QueueDeadline {
        /// Whose time ran out.
        rank: Rank,
        /// What the GPU was to do.
        what: String,
        /// Whom it may have waited for; nobody but the device where no other rank takes part.
        suspects: Vec<Rank>,
        /// The deadline.
        after: Duration,
    },
    /// NCCL refused a call, or found a failure while it ran.
    #[error("rank {rank}: NCCL could not {what}: {why}")]
    Nccl {
        /// Who was told.
        rank: Rank,
        /// What it was about to do.
        what: String,
        /// NCCL's answer by its number: 6 is ncclRemoteError.
        code: i32,
        /// The same in words.
        why: String,
    },
    /// A rank called `abort`.
    #[error("aborted by rank {by}: {why}")]
    Aborted {
        /// Who called it.
        by: Rank,
        /// What it said.
        why: String,
    },
    /// The communicator failed before; this rank has been told why already.
    #[error("this communicator has failed before: {cause}")]
    Poisoned {
        /// The first error.
        cause: String,
    },
    /// Every rank waits, and nothing is under way that could wake one.
    #[error("deadlock: {}", .waits.join("; "))]
    Deadlock {
        /// Who waits for whom, one rank each.
        waits: Vec<String>,
    },
    /// On virtual time a rank may block only in Allfold's calls; these were busy elsewhere for too long.
    #[error("{} neither called nor returned for {after:?} while the others waited: ranks on virtual time may block only in Allfold's calls", Rank::list(.waiting_on))]
    Unresponsive {
        /// Who was busy, as world ranks.
        waiting_on: Vec<Rank>,
        /// For how long of real time.
        after: Duration,
    },
    /// Virtual time has run out of its 64 bits.
    #[error(
        "virtual time goes beyond 53 days: costs, faults or computation are too large for picoseconds in 64 bits"
    )]
    Endless,
    /// A frame that is not what the receiver's own schedule says: the two sides run different schedules.
    #[error("rank {rank} got a frame from rank {peer} that does not fit {call} in round {round}: {what}")]
    Protocol {
        /// The receiver.
        rank: Rank,
        /// The sender.
        peer: Rank,
        /// The receiver's operation.
        call: Box<Call>,
        /// The receiver's round.
        round: u64,
        /// What was expected and what came.
        what: String,
    },
    /// A schedule that cannot be run; the checkers of `check` say more.
    #[error("schedule of {call}, rank {rank}, round {round}: {what}")]
    Schedule {
        /// Whose step it is.
        rank: Rank,
        /// The operation.
        call: Box<Call>,
        /// The round.
        round: u64,
        /// What is wrong with the step.
        what: String,
    },
    /// The environment does not say which rank this process is, or says what cannot be.
    #[error("environment: {variable} is {}: {wanted}", was(.read))]
    Environment {
        /// The variable.
        variable: String,
        /// What was read; nothing where it is not set.
        read: Option<String>,
        /// What would be right.
        wanted: String,
    },
    /// Ranks could not find each other.
    #[error("rendezvous at {at}: {cause}")]
    Rendezvous {
        /// Host and port.
        at: String,
        /// What went wrong there.
        cause: crate::rendezvous::RendezvousFailure,
    },
    /// Some ranks could not be reached at the start.
    #[error("{} did not come within {after:?}", Rank::list(.missing))]
    Missing {
        /// Who did not come, as world ranks.
        missing: Vec<Rank>,
        /// For how long they were waited for.
        after: Duration,
    },
    /// A rank could not be connected to, or did not want to be.
    #[error("no connection to rank {peer}: {why}")]
    Refused {
        /// Who, as a world rank.
        peer: Rank,
        /// Why.
        why: String,
    },
    /// A rank does not hold the same secret.
    #[error("rank {peer} holds another secret than this rank: all ranks of a job need the same one")]
    AuthFailed {
        /// Who, as a world rank.
        peer: Rank,
    },
    /// The operating system refused something that the backend needs.
    #[error("{0}")]
    System(String),
    /// No algorithm of that name, or for that many ranks.
    #[error(transparent)]
    Registry(#[from] crate::registry::Error),
    /// The topology, a fault rule or a cost cannot be used.
    #[error(transparent)]
    Sim(#[from] allfold_sim::Error),
}

/// How a rank was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Its code panicked, with this message.
    Panicked(String),
    /// It returned, or dropped its communicator, after this many operations.
    ReturnedEarly {
        /// Operations that it had entered.
        operations: u64,
    },
    /// Its connection ended, in this way: its process is gone, or the network between.
    Disconnected(String),
    /// A rank heard nothing of it for this long, though their connection stands.
    Silent {
        /// Who heard nothing: the way from the lost rank to this one may be what is broken.
        by: Rank,
        /// For how long.
        after: Duration,
    },
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Panicked(message) => write!(f, "panicked: {message}"),
            Lost::ReturnedEarly { operations } => write!(f, "returned early, after {operations} operations"),
            Lost::Disconnected(how) => f.write_str(how),
            Lost::Silent { by, after } => write!(f, "gave rank {by} no sign of life for {after:?}"),
        }
    }
}

impl From<allfold_net::Error> for Error {
    fn from(error: allfold_net::Error) -> Error {
        use allfold_net::Error as Net;
        match error {
            Net::Argument(what) => Error::Argument(what),
            Net::Environment { variable, read, wanted } => Error::Environment { variable, read, wanted },
            Net::System(what) => Error::System(what),
            other => Error::System(other.to_string()),
        }
    }
}

impl Error {
    /// Whether the call itself was wrong, so that nothing was sent and the communicator stays usable.
    pub(crate) fn is_callers(&self) -> bool {
        matches!(self, Error::Argument(_) | Error::Registry(_))
    }

    /// The same error as `rank` sees it: of two calls that disagree its own comes first.
    pub(crate) fn seen_by(&self, me: Rank) -> Error {
        match self {
            Error::Mismatch { rank, mine, peer, theirs } if *peer == me => {
                Error::Mismatch { rank: *peer, mine: theirs.clone(), peer: *rank, theirs: mine.clone() }
            }
            other => other.clone(),
        }
    }
}

fn was(read: &Option<String>) -> String {
    read.as_ref().map_or_else(|| "not set".into(), |read| format!("`{read}`"))
}

fn during(call: &Option<Box<Call>>) -> String {
    call.as_ref().map_or_else(String::new, |call| format!("; others wait for it in {call}"))
}

fn suspected(suspects: &[Rank]) -> String {
    if suspects.is_empty() { "the device".into() } else { format!("among {}", Rank::list(suspects)) }
}

fn late(
    rank: &Rank,
    waiting_on: &[Rank],
    entered: bool,
    call: &Call,
    round: u64,
    after: &Duration,
) -> String {
    let why = match (waiting_on, entered) {
        ([], _) => String::new(),
        (of, false) => format!(": {} never entered it", Rank::list(of)),
        (of, true) => format!(", waiting for {}", Rank::list(of)),
    };
    format!("deadline of {after:?} exceeded by rank {rank} in {call}, round {round}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, DType, Operation};

    fn call(count: u64) -> Box<Call> {
        Box::new(Call::plain(Operation::Collective(Collective::Broadcast), 4, count, DType::F32))
    }

    #[test]
    fn a_mismatch_puts_the_readers_call_first() {
        let error = Error::Mismatch { rank: Rank(0), mine: call(10), peer: Rank(3), theirs: call(11) };
        assert_eq!(
            error.seen_by(Rank(3)).to_string(),
            "ranks disagree: rank 3 called broadcast(11 x f32) as operation 4, \
             but rank 0 called broadcast(10 x f32) as operation 4"
        );
        assert_eq!(error.seen_by(Rank(1)), error);
    }

    #[test]
    fn a_deadline_names_who_never_came() {
        let error = Error::DeadlineExceeded {
            rank: Rank(0),
            waiting_on: vec![Rank(2), Rank(5)],
            entered: false,
            call: call(1),
            round: 3,
            after: Duration::from_secs(1),
        };
        assert_eq!(
            error.to_string(),
            "deadline of 1s exceeded by rank 0 in broadcast(1 x f32) as operation 4, round 3: \
             ranks 2, 5 never entered it"
        );
    }
}
