//! The errors of collectives: which rank failed, in which operation and round, and why.

use crate::{Call, Rank};
use std::fmt;
use std::time::Duration;

/// The result of a call that communicates.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a collective failed. All ranks of a group get the group's first error; rank numbers are those of the group.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call itself is wrong: a length, a root, a name. Nothing was sent; the communicator stays usable.
    #[error("{0}")]
    Argument(String),
    /// A rank was lost although other ranks still need it.
    #[error("rank {rank}{} is lost: it {cause}{}", of_all(.world), during(.call))]
    PeerLost {
        /// The rank that was lost.
        rank: Rank,
        /// The number of the lost rank in the world, where the group is a part of the world.
        world: Option<Rank>,
        /// How the rank was lost.
        cause: Lost,
        /// The operation that needed the lost rank, if any.
        call: Option<Box<Call>>,
    },
    /// Two ranks made different calls at the same position of the sequence of operations.
    #[error("ranks disagree: rank {rank} called {mine}, but rank {peer} called {theirs}")]
    Mismatch {
        /// The rank that called `mine`: this rank, if it is one of the two.
        rank: Rank,
        /// The call of `rank`.
        mine: Box<Call>,
        /// The rank whose call differs.
        peer: Rank,
        /// The call of `peer`.
        theirs: Box<Call>,
    },
    /// An operation exceeded its deadline.
    #[error("{}", late(.rank, .waiting_on, *.entered, .call, *.round, .after))]
    DeadlineExceeded {
        /// The rank whose deadline passed first.
        rank: Rank,
        /// The ranks that `rank` was waiting for.
        waiting_on: Vec<Rank>,
        /// Whether the ranks of `waiting_on` had entered the operation.
        entered: bool,
        /// The operation that exceeded its deadline.
        call: Box<Call>,
        /// The round of the oldest unfinished step.
        round: u64,
        /// The length of the deadline.
        after: Duration,
    },
    /// An NCCL call exceeded its deadline. NCCL does not report which rank is late.
    #[error("deadline of {after:?} exceeded by rank {rank}: NCCL could not {what}; the cause is {}", suspected(.suspects))]
    NcclDeadline {
        /// The rank whose deadline passed.
        rank: Rank,
        /// The operation that did not finish.
        what: String,
        /// The ranks that `rank` may have waited for; empty if only the device is involved.
        suspects: Vec<Rank>,
        /// The length of the deadline.
        after: Duration,
    },
    /// Work on a GPU, other than NCCL's, exceeded its deadline.
    #[error("deadline of {after:?} exceeded by rank {rank}: the GPU did not {what}; the cause is {}", suspected(.suspects))]
    QueueDeadline {
        /// The rank whose deadline passed.
        rank: Rank,
        /// The work that the GPU had not finished.
        what: String,
        /// The ranks that `rank` may have waited for; empty if only the device is involved.
        suspects: Vec<Rank>,
        /// The length of the deadline.
        after: Duration,
    },
    /// NCCL refused a call, or found a failure while it ran.
    #[error("rank {rank}: NCCL could not {what}: {why}")]
    Nccl {
        /// The rank whose call of NCCL failed.
        rank: Rank,
        /// What the rank was about to do.
        what: String,
        /// NCCL's result code: 6 is ncclRemoteError.
        code: i32,
        /// NCCL's result in words.
        why: String,
    },
    /// A rank ended the group's operations: it called `abort` or `shrink`, or its own program interrupted it.
    #[error("aborted by rank {by}: {why}")]
    Aborted {
        /// The rank that ended the operations.
        by: Rank,
        /// The reason that this rank gave.
        why: String,
    },
    /// The communicator failed before, and this rank has already got that error; or the other ranks shrank the communicator without this
    /// rank.
    #[error("this communicator has failed before: {cause}")]
    Poisoned {
        /// The first error that this rank got from the group, or the fact that the other ranks left it out, as text.
        cause: String,
    },
    /// Deadlock: every rank waits, and no message is in flight.
    #[error("deadlock: {}", .waits.join("; "))]
    Deadlock {
        /// For each rank, which rank it waits for.
        waits: Vec<String>,
    },
    /// A rank on virtual time may block only in Allfold's calls; these ranks were busy elsewhere for too long.
    #[error("{} made no call of Allfold and did not return for {after:?} while the others waited: ranks on virtual time may block only in Allfold's calls", Rank::list(.waiting_on))]
    Unresponsive {
        /// The ranks that were busy, as world ranks.
        waiting_on: Vec<Rank>,
        /// How long the ranks were busy, in real time.
        after: Duration,
    },
    /// Virtual time exceeded its 64 bits.
    #[error(
        "virtual time goes beyond 53 days: costs, faults or computation are too large for picoseconds in 64 bits"
    )]
    Endless,
    /// A frame that the receiver's schedule does not expect: the two sides run different schedules.
    #[error("rank {rank} got a frame from rank {peer} that does not fit {call} in round {round}: {what}")]
    Protocol {
        /// The receiver.
        rank: Rank,
        /// The sender.
        peer: Rank,
        /// The operation of the receiver.
        call: Box<Call>,
        /// The round of the receiver's step.
        round: u64,
        /// What was expected and what arrived.
        what: String,
    },
    /// A schedule that cannot be run; `check` gives the counterexample.
    #[error("schedule of {call}, rank {rank}, round {round}: {what}")]
    Schedule {
        /// The rank whose step is wrong.
        rank: Rank,
        /// The operation of the step.
        call: Box<Call>,
        /// The round of the step.
        round: u64,
        /// What is wrong with the step.
        what: String,
    },
    /// The environment variables do not determine this process's rank, or have impossible values.
    #[error("environment: {variable} is {}: {wanted}", was(.read))]
    Environment {
        /// The name of the variable.
        variable: String,
        /// The variable's value; `None` if it is not set.
        read: Option<String>,
        /// Which value would be right.
        wanted: String,
    },
    /// Ranks could not find each other.
    #[error("rendezvous at {at}: {cause}")]
    Rendezvous {
        /// Host and port of the rendezvous.
        at: String,
        /// Why the rendezvous failed.
        cause: crate::rendezvous::RendezvousFailure,
    },
    /// Some ranks could not be reached at the start.
    #[error("{} did not join within {after:?}", Rank::list(.missing))]
    Missing {
        /// The missing ranks, as world ranks.
        missing: Vec<Rank>,
        /// How long the other ranks waited for the missing ranks.
        after: Duration,
    },
    /// A connection to a rank failed, or the rank refused it.
    #[error("no connection to rank {peer}: {why}")]
    Refused {
        /// The rank, as a world rank.
        peer: Rank,
        /// Why the connection failed, or why the rank refused it.
        why: String,
    },
    /// A rank holds a different secret.
    #[error("rank {peer} holds another secret than this rank: all ranks of a job need the same one")]
    AuthFailed {
        /// The rank, as a world rank.
        peer: Rank,
    },
    /// The operating system refused a resource that the backend needs.
    #[error("{0}")]
    System(String),
    /// The registry cannot serve the request: no algorithm has that name, or the number of ranks or the root is impossible.
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
    /// The rank's code panicked, with this message.
    Panicked(String),
    /// The rank returned or dropped its communicator.
    ReturnedEarly {
        /// The number of operations that the lost rank had entered.
        operations: u64,
    },
    /// The connection to the rank ended: its process or the network failed.
    Disconnected(String),
    /// Another rank received nothing from the lost rank for too long, although their connection is open.
    Silent {
        /// The rank that received nothing. The path from the lost rank to `by` may be broken.
        by: Rank,
        /// How long nothing was received.
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
    /// Whether the call itself was wrong. Then nothing was sent, and the communicator stays usable.
    pub(crate) fn is_callers(&self) -> bool {
        matches!(self, Error::Argument(_) | Error::Registry(_))
    }

    /// The loss of a rank of the group, found in `call` of another rank if there is one.
    pub(crate) fn lost(rank: Rank, cause: Lost, call: Option<Box<Call>>) -> Error {
        Error::PeerLost { rank, world: None, cause, call }
    }

    /// This error with the lost rank's number in the world added; `ranks` are the world numbers of the group's ranks.
    pub(crate) fn in_world(mut self, ranks: &[Rank]) -> Error {
        if let Error::PeerLost { rank, world, .. } = &mut self {
            *world = ranks.get(rank.index()).copied();
        }
        self
    }

    /// This error from the point of view of rank `me`: of two calls that disagree, that of `me` comes first, if it is one of them.
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

fn of_all(world: &Option<Rank>) -> String {
    world.map_or_else(String::new, |rank| format!(" (rank {rank} of the world)"))
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
    fn a_deadline_names_the_absent_ranks() {
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
