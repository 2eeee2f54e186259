//! Errors of joining other processes.

/// The result of anything that prepares connections.
pub type Result<T> = std::result::Result<T, Error>;

/// An error that keeps a process from making any connection. [`crate::Refusal`] is the reason why one connection fails, and
/// [`crate::rendezvous::RendezvousFailure`] the reason why ranks do not find each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is invalid: a secret, an address.
    #[error("{0}")]
    Argument(String),
    /// The environment does not determine this process's rank, or has an impossible value.
    #[error("environment: {variable} is {}: {wanted}", was(.read))]
    Environment {
        /// The name of the variable.
        variable: String,
        /// The value of the variable; `None` if it is not set.
        read: Option<String>,
        /// The values that would be right.
        wanted: String,
    },
    /// The operating system refused a resource.
    #[error("{0}")]
    System(String),
}

fn was(read: &Option<String>) -> String {
    read.as_ref().map_or_else(|| "not set".into(), |read| format!("`{read}`"))
}
