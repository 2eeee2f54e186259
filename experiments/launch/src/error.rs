//! Why a job failed.

use std::fmt::Display;

/// The error of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A flag or setting of the launch is wrong: another try would fail as well.
    #[error("{0}")]
    Usage(String),
    /// The launcher itself failed.
    #[error("{0}")]
    Run(String),
    /// The reader of the ranks' output has closed it, and output is lost.
    #[error("the reader of the ranks' output has closed it")]
    Closed,
    /// The job failed: by a rank, by a node that was lost or could not start its ranks, or by a signal.
    #[error("{text}")]
    Rank {
        /// What failed first, and how.
        text: String,
        /// The launcher's exit code: for a rank its own, or 128 plus the number of the signal that killed it.
        code: u8,
    },
}

impl Error {
    pub(crate) fn usage(what: impl Display) -> Error {
        Error::Usage(what.to_string())
    }

    pub(crate) fn run(what: impl Display) -> Error {
        Error::Run(what.to_string())
    }
}

/// The result of a launch.
pub type LaunchResult<T = ()> = Result<T, Error>;
