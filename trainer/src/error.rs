//! The errors of a training run.

use std::path::{Path, PathBuf};

/// The result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl From<allfold_datasets::Error> for Error {
    fn from(error: allfold_datasets::Error) -> Error {
        match error {
            allfold_datasets::Error::Options(what) => Error::Config(what),
            allfold_datasets::Error::Lost(what) => Error::Lost(what),
            allfold_datasets::Error::Data(what) => Error::Data(what),
        }
    }
}

impl From<allfold_config::Error> for Error {
    fn from(error: allfold_config::Error) -> Error {
        Error::Config(error.0)
    }
}

/// An error of the trainer. Each message says what is wrong and what would be right.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be read, or whose values do not make sense.
    #[error("{0}")]
    Config(String),
    /// Layers that do not fit together.
    #[error("network: {0}")]
    Network(String),
    /// A dataset that cannot be read or does not fit the model.
    #[error("data: {0}")]
    Data(String),
    /// Data that cannot be read any more, in the middle of a run.
    #[error("data: {0}")]
    Lost(String),
    /// Ranks that hold different parameters.
    #[error("replicas differ: {0}")]
    Replicas(String),
    /// A file that is no checkpoint or weights, or is of another run: trying again does not help.
    #[error("checkpoint: {0}")]
    Checkpoint(String),
    /// A checkpoint that cannot be written or read now.
    #[error("checkpoint: {0}")]
    Storage(String),
    /// A loss, a test loss or a weight is not finite: the run has diverged, and would diverge again.
    #[error("step {step}: {what} of rank {rank} is {value}{}{}", first(layer.as_deref()), suspect(checkpoint.as_deref()))]
    NotFinite {
        /// `the loss`, `the test loss` or `a weight`.
        what: &'static str,
        /// The rank with the value that is not finite.
        rank: allfold_collectives::Rank,
        /// Number of the step, from 0.
        step: u64,
        /// The value: NaN or an infinity.
        value: f64,
        /// The first layer with an output that is not finite; `None` on GPUs, which keep no outputs, and for a test loss or weight.
        layer: Option<String>,
        /// The newest checkpoint of the run, if there is one.
        checkpoint: Option<PathBuf>,
    },
    /// A strategy uses a tensor that its rank does not have at that time: an error of the strategy, not of its user.
    #[error("strategy: {0}")]
    Strategy(String),
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] allfold_collectives::Error),
    /// A GPU failed or is missing.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Device(#[from] allfold_cuda::Error),
    /// A step cannot be predicted.
    #[error(transparent)]
    Time(#[from] allfold_collectives::time::Error),
}

fn first(layer: Option<&str>) -> String {
    let named = |layer| format!("; the first output that is not finite is that of `{layer}`");
    layer.map_or_else(String::new, named)
}

fn suspect(checkpoint: Option<&Path>) -> String {
    let named = |path: &Path| format!("; the newest checkpoint, {}, may already be affected", path.display());
    checkpoint.map_or_else(String::new, named)
}

impl From<allfold_networks::Error> for Error {
    fn from(error: allfold_networks::Error) -> Error {
        match error {
            allfold_networks::Error::Config(what) => Error::Config(what),
            allfold_networks::Error::Network(what) => Error::Network(what),
            allfold_networks::Error::Batch(what) => Error::Data(what),
            other => Error::Network(other.to_string()),
        }
    }
}

#[cfg(feature = "cuda")]
impl From<allfold_gpu_passes::Error> for Error {
    fn from(error: allfold_gpu_passes::Error) -> Error {
        match error {
            allfold_gpu_passes::Error::Network(error) => error.into(),
            allfold_gpu_passes::Error::Absent(what) => Error::Strategy(what),
            allfold_gpu_passes::Error::Collective(error) => error.into(),
            allfold_gpu_passes::Error::Device(error) => error.into(),
            other => Error::Strategy(other.to_string()),
        }
    }
}
