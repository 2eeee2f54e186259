//! The networks, one file each, in one table that configuration and tests read.

mod cnn;
mod mlp;

pub use cnn::{Cnn, cnn};
pub use mlp::mlp;

use crate::network::Network;
use crate::{Config, Result};
use allfold_kernels::nn::Float;

/// The names by which a configuration asks for a model.
pub const MODELS: &[(&str, &str)] = &[
    ("mlp", "fully connected layers with rectifiers between them"),
    ("cnn", "blocks of 3x3 convolution, batch norm and rectifier, then a pooling and a linear layer"),
];

/// The model that `config` asks for, over samples of `shape` (channels, height, width).
///
/// # Errors
/// If no model has that name, or its layers do not fit the samples.
pub fn build<F: Float>(config: &Config, shape: (usize, usize, usize), classes: usize) -> Result<Network<F>> {
    let mut network = match config.model.as_str() {
        "mlp" => mlp(shape.0 * shape.1 * shape.2, &config.hidden, classes),
        "cnn" => cnn(&Cnn { shape, channels: &config.channels, batch_norm: config.batch_norm, classes }),
        other => Err(crate::config::unknown("model", other, MODELS.iter().map(|(name, _)| *name))),
    }?;
    if config.sync_batch_norm {
        network.synchronise();
    }
    Ok(network)
}
