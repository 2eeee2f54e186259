//! The error of a configuration.

/// The result of anything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a configuration, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);
