//! Errors of the timing engines.

use allfold_schedules::schedule::Rank;

/// The reason why a job cannot be timed. Each message states what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The parts of the job do not fit together.
    #[error("{0}")]
    Job(String),
    /// The send and the receive of a message do not match, so the schedule is wrong (`check::matching` finds the place).
    #[error("round {round}: rank {rank} {what}; `check::matching` names every such message")]
    Unmatched {
        /// The rank whose half does not match.
        rank: Rank,
        /// The round in which the halves do not match.
        round: u64,
        /// What the rank does or waits for.
        what: String,
    },
    /// Ranks are unfinished and no message moves.
    #[error("deadlock: rank {rank} waits in round {round} for {what}, and no message is in flight")]
    Deadlock {
        /// A rank that waits.
        rank: Rank,
        /// The round in which the rank waits.
        round: u64,
        /// What the rank waits for.
        what: String,
    },
    /// Ranks cannot be simulated by one representative per symmetry class.
    #[error("by_symmetry: {why}; {instead}")]
    NoSymmetry {
        /// What breaks the symmetry.
        why: String,
        /// The engine or job that would work instead.
        instead: String,
    },
    /// A time that no machine could reach: a bug of the simulator, never of its input.
    #[error("internal error: {time} ps beats the {which} bound of {bound} ps; please report this schedule")]
    BeatsBound {
        /// The simulated time, in picoseconds.
        time: u64,
        /// The bound, in picoseconds.
        bound: u64,
        /// The name of the bound.
        which: &'static str,
    },
    /// A fault rule, or the deadline, prevents ranks from finishing. The value is the failure that the surviving ranks report.
    #[error("{0}")]
    Fault(Box<super::Failure>),
    /// A time, or a number, that is more than the simulator can hold.
    #[error("{0} is more than the simulator can hold; use a smaller buffer or fewer ranks")]
    Overflow(&'static str),
}
