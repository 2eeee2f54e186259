//! What can keep a run from having a time.

use allfold_schedules::schedule::Rank;

/// Why a job cannot be timed. Each message says what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The parts of the job do not belong together.
    #[error("{0}")]
    Job(String),
    /// Two halves of a message do not meet: the schedule is wrong (`check::matching` says where).
    #[error("round {round}: rank {rank} {what}; `check::matching` names every such message")]
    Unmatched {
        /// The waiting rank.
        rank: Rank,
        /// The round.
        round: u64,
        /// What the rank does or waits for.
        what: String,
    },
    /// Ranks are unfinished and no message moves.
    #[error("deadlock: rank {rank} waits in round {round} for {what}, and no message is under way")]
    Deadlock {
        /// The first rank that waits.
        rank: Rank,
        /// The round.
        round: u64,
        /// What the rank waits for.
        what: String,
    },
    /// One representative per class cannot stand for all ranks.
    #[error("by_symmetry: {why}; {instead}")]
    NoSymmetry {
        /// What breaks the symmetry.
        why: String,
        /// What would be right.
        instead: String,
    },
    /// A time that no machine could reach: a mistake in the simulator, never in its input.
    #[error("internal error: {time} ps beats the {which} bound of {bound} ps; please report this schedule")]
    BeatsBound {
        /// The time found.
        time: u64,
        /// The bound.
        bound: u64,
        /// Which bound.
        which: &'static str,
    },
    /// A fault rule that no rank can get round: what survivors are told.
    #[error("{0}")]
    Fault(Box<super::Failure>),
    /// Picoseconds or bytes that do not fit 64 bits.
    #[error("{0} does not fit 64 bits; use a smaller buffer or fewer ranks")]
    Overflow(&'static str),
}
