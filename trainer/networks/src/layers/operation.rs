//! What a layer computes, as data: for devices that have arithmetic of their own.

use allfold_kernels::nn::{Conv2dShape, PoolShape};

/// The formula of a layer and its shape, per sample.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerOperation {
    /// `y = x w' + b` for each of `rows` rows.
    Linear {
        /// Rows of a sample.
        rows: usize,
        /// Numbers of a row that go in.
        inputs: usize,
        /// Outputs of a row.
        outputs: usize,
        /// Whether there is a b.
        bias: bool,
    },
    /// A convolution, with a bias per channel or without.
    Conv {
        /// The convolution's shape.
        shape: Conv2dShape,
        /// Whether there is a bias.
        bias: bool,
    },
    /// A batch norm.
    BatchNorm {
        /// Channels.
        channels: usize,
        /// Pixels of a channel.
        plane: usize,
        /// Whether by the samples of all ranks.
        synchronised: bool,
    },
    /// A layer norm of each of `rows` rows.
    LayerNorm {
        /// Rows of a sample.
        rows: usize,
        /// Numbers of a row.
        width: usize,
    },
    /// max(x, 0).
    Relu,
    /// The Gaussian error linear unit.
    Gelu,
    /// The sum of two activations.
    Add,
    /// The maximum of each window.
    MaxPool(PoolShape),
    /// The mean of each window.
    MeanPool(PoolShape),
    /// The mean of whole planes.
    GlobalMeanPool {
        /// Channels.
        channels: usize,
        /// Pixels of a channel.
        plane: usize,
    },
    /// Rows of a table by token.
    Embedding {
        /// Tokens of a sample.
        positions: usize,
        /// Rows of the table.
        rows: usize,
        /// Numbers of a row.
        width: usize,
    },
    /// A row added to each position.
    Positions {
        /// Positions of a sample, and rows of the table.
        positions: usize,
        /// Numbers of a row.
        width: usize,
    },
    /// Causal attention over q, k, v side by side.
    Attention {
        /// Tokens of a sample.
        positions: usize,
        /// Numbers of a token, over all heads.
        width: usize,
        /// Heads.
        heads: usize,
        /// In training, the share of probabilities that is dropped.
        dropped: f64,
    },
    /// Dropout.
    Dropout {
        /// The share of zeros.
        share: f64,
    },
    /// A layer that only its own [`super::Layer::forward`] describes.
    Own,
}
