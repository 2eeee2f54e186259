//! A counterexample: the place at which a proof fails.

use crate::schedule::Rank;
use std::fmt;

/// The rank, round and chunk at which a schedule is wrong, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Counterexample {
    /// The rank with the wrong step or result.
    pub rank: Rank,
    /// The wrong round; `None` if no single round is wrong.
    pub round: Option<u64>,
    /// The wrong chunk of the data; `None` if no single chunk is wrong.
    pub chunk: Option<u32>,
    /// What was expected and what was found.
    pub what: String,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        self.round.map_or(Ok(()), |round| write!(f, ", round {round}"))?;
        self.chunk.map_or(Ok(()), |chunk| write!(f, ", chunk {chunk}"))?;
        write!(f, ": {}", self.what)
    }
}
