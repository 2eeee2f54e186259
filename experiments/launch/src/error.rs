//! Why a launch ends badly.

use std::fmt::Display;

/// A launch's bad end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The launch was asked for what cannot be; another try will not mend it.
    #[error("{0}")]
    Usage(String),
    /// The launch itself failed.
    #[error("{0}")]
    Run(String),
    /// A rank failed, before any other.
    #[error("{text}")]
    Rank {
        /// Which rank, where and how.
        text: String,
        /// The launcher's exit code: the rank's, or 128 and the number of the signal that killed the rank.
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
