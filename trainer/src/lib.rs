//! Training neural networks, small enough to be read in one sitting.
pub mod buckets;
pub mod config;
pub mod data;
mod error;
pub mod init;
pub mod layers;
mod model;
pub mod models;
mod network;
mod optim;
pub mod sampler;
pub mod strategies;

pub use config::Config;
pub use data::{Batch, Dataset};
pub use error::Error;
pub use model::{Listener, Model};
pub use network::{Network, Phase, Place};
pub use optim::Sgd;
pub use sampler::Sampler;

/// The result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;
