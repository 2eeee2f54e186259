//! The errors of networks.

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Layers that do not fit together.
    #[error("network: {0}")]
    Network(String),
    /// A configuration that does not fit the network: an unknown layer, or a cut where none is possible.
    #[error("{0}")]
    Config(String),
    /// A batch from which a layer cannot compute its statistics.
    #[error("data: {0}")]
    Batch(String),
}

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The error for a layer that is not among `names`: it suggests the nearest, or lists all.
pub(crate) fn unknown_layer(what: &str, got: &str, names: &[String]) -> Error {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Error::Config(format!("unknown {what} `{got}`; {}", allfold_base::suggest::suggestion(got, &names)))
}
