//! Errors of joining other processes.

/// The result of anything that prepares connections.
pub type Result<T> = std::result::Result<T, Error>;

/// An error that keeps a process from making any connection. [`crate::Refusal`] says why one connection fails, and
/// [`crate::rendezvous::RendezvousFailure`] why ranks do not find each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is invalid: a secret, an address.
    #[error("{0}")]
    Argument(String),
    /// The environment does not say which rank this process is, or has an impossible value.
    #[error("environment: {variable} is {}: {wanted}", was(.read))]
    Environment {
        /// The name of the variable.
        variable: String,
        /// The value of the variable; `None` if it is not set.
        read: Option<String>,
        /// The values that would be right.
        wanted: String,
    },
    /// The operating system refused something.
    #[error("{0}")]
    System(String),
}

fn was(read: &Option<String>) -> String {
    read.as_ref().map_or_else(|| "not set".into(), |read| format!("`{read}`"))
}
