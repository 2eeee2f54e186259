//! The errors of passes on a device.

/// An error of this crate.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A network that the kernels cannot compute, or a batch that a layer refuses.
    #[error(transparent)]
    Network(#[from] allfold_networks::Error),
    /// Parameters or gradients that are used while the rank has only its part of them.
    #[error("{0}")]
    Absent(String),
    /// An exchange with other ranks failed.
    #[error(transparent)]
    Collective(#[from] allfold_collectives::Error),
    /// The device failed, or refused a call.
    #[error(transparent)]
    Device(#[from] allfold_cuda::Error),
}

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error in the passes themselves or in the layers that they compute.
pub(crate) fn network(what: String) -> Error {
    allfold_networks::Error::Network(what).into()
}

/// The error for a network or layer that GPUs do not compute.
pub(crate) fn unsupported(what: String) -> Error {
    allfold_networks::Error::Config(what).into()
}
