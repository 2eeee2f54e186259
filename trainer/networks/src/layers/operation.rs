//! The operation of a layer as data, for devices with kernels of their own.

use super::ExpertShape;
use allfold_kernels::nn::{Conv2dShape, PoolShape, RopeShape};
use std::ops::Range;

/// The formula of a layer and its shape, per sample.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerOperation {
    /// `y = x w' + b` for each of `rows` rows.
    Linear {
        /// The number of rows of a sample.
        rows: usize,
        /// The number of inputs of a row.
        inputs: usize,
        /// The number of outputs of a row.
        outputs: usize,
        /// Whether there is a bias.
        bias: bool,
    },
    /// [`LayerOperation::Linear`] of which this rank of the tensor axis has some outputs: the gradient of its input is the sum over the
    /// ranks.
    ColumnParallel {
        /// The number of rows of a sample.
        rows: usize,
        /// The number of inputs of a row.
        inputs: usize,
        /// The number of this rank's outputs of a row.
        outputs: usize,
        /// Whether there is a bias.
        bias: bool,
        /// The number of ranks that share the rows of the input evenly; 1 if each has all.
        sharers: usize,
    },
    /// [`LayerOperation::Linear`] of which this rank of the tensor axis has some inputs: its output is the sum over the ranks, to which the
    /// whole bias is added.
    RowParallel {
        /// The number of rows of a sample.
        rows: usize,
        /// The number of this rank's inputs of a row.
        inputs: usize,
        /// The number of outputs of a row.
        outputs: usize,
        /// Whether there is a bias.
        bias: bool,
        /// The number of ranks that share the rows of the output evenly; 1 if each gets all.
        sharers: usize,
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
        /// The number of channels.
        channels: usize,
        /// The number of pixels of a channel.
        plane: usize,
        /// Whether the statistics are those of all ranks' samples.
        synchronised: bool,
    },
    /// A layer norm of each of `rows` rows.
    LayerNorm {
        /// The number of rows of a sample.
        rows: usize,
        /// The number of values in a row.
        width: usize,
        /// The constant that is added to the variance.
        eps: f64,
    },
    /// [`LayerOperation::LayerNorm`] of this rank's rows: the gradients of its parameters are summed over the tensor axis.
    SequenceLayerNorm {
        /// The number of this rank's rows of a sample.
        rows: usize,
        /// The number of values in a row.
        width: usize,
        /// The constant that is added to the variance.
        eps: f64,
    },
    /// [`LayerOperation::Positions`] of which this rank of the tensor axis adds these rows.
    SequencePositions {
        /// The number of rows of the table.
        positions: usize,
        /// This rank's rows.
        rows: Range<usize>,
        /// The number of values in a row.
        width: usize,
    },
    /// A root mean square norm of each of `rows` rows.
    RmsNorm {
        /// The number of rows of a sample.
        rows: usize,
        /// The number of values in a row.
        width: usize,
        /// The constant that is added to the mean square.
        eps: f64,
    },
    /// A rotation of queries and keys by position.
    Rope(RopeShape),
    /// A gated linear unit of each of `rows` rows.
    Swiglu {
        /// The number of rows of a sample.
        rows: usize,
        /// The number of outputs of a row.
        width: usize,
    },
    /// The rectifier, max(x, 0).
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
        /// The number of channels.
        channels: usize,
        /// The number of pixels of a channel.
        plane: usize,
    },
    /// A row of a table for each token.
    Embedding {
        /// The number of tokens of a sample.
        positions: usize,
        /// The number of rows of the table.
        rows: usize,
        /// The number of values in a row.
        width: usize,
    },
    /// [`LayerOperation::Embedding`] of which this rank of the tensor axis has some rows: its output is the sum over the ranks.
    VocabParallel {
        /// The number of tokens of a sample.
        positions: usize,
        /// This rank's rows of the table.
        rows: Range<usize>,
        /// The number of values in a row.
        width: usize,
        /// The number of ranks that share the positions of the output evenly; 1 if each gets all.
        sharers: usize,
    },
    /// A table whose row is added to each position.
    Positions {
        /// The number of positions of a sample, and of rows of the table.
        positions: usize,
        /// The number of values in a row.
        width: usize,
    },
    /// Attention over q, k, v side by side.
    Attention {
        /// The number of tokens of a sample.
        positions: usize,
        /// Numbers of a token, over all heads.
        width: usize,
        /// The number of heads.
        heads: usize,
        /// The number of heads of keys and values.
        kv_heads: usize,
        /// Whether a token attends to itself and earlier tokens only.
        causal: bool,
        /// In training, the share of probabilities that is dropped.
        dropped: f64,
        /// The number of the first head among those of all ranks of the tensor axis.
        first_head: usize,
    },
    /// [`LayerOperation::Attention`], causal, of which each rank of the context axis has two chunks of positions.
    RingAttention {
        /// The number of tokens of a whole sample.
        positions: usize,
        /// Numbers of a token, over all heads.
        width: usize,
        /// The number of heads.
        heads: usize,
        /// In training, the share of probabilities that is dropped.
        dropped: f64,
    },
    /// [`LayerOperation::Positions`] of which this rank of the context axis adds these two runs of rows.
    PositionsPart {
        /// The rows, in order of the rank's positions.
        rows: [Range<usize>; 2],
        /// The number of values in a row.
        width: usize,
    },
    /// Dropout.
    Dropout {
        /// The share of values that is set to zero.
        share: f64,
        /// The elements of a whole sample that the layer has.
        runs: Vec<Range<usize>>,
    },
    /// The router of a mixture of experts.
    ExpertRouter {
        /// The mixture's sizes.
        shape: ExpertShape,
        /// The weight of the balance loss.
        balance: f64,
        /// The number of ranks that share the experts.
        ranks: usize,
    },
    /// A linear layer with weights for each expert that the rank has, over the slots of these experts.
    ExpertLinear {
        /// The number of inputs of a slot.
        inputs: usize,
        /// The number of outputs of a slot.
        outputs: usize,
        /// The number of experts of all ranks.
        experts: usize,
        /// The number of ranks that share the experts.
        ranks: usize,
        /// Slots of an expert for each sample.
        capacity: usize,
        /// The numbers at the end of a sample that pass through.
        tail: usize,
    },
    /// [`LayerOperation::Gelu`] of the experts' slots.
    ExpertGelu {
        /// The numbers of a sample in slots.
        slots: usize,
        /// The numbers at the end of a sample that pass through.
        tail: usize,
    },
    /// The sum of the outputs of each token's experts, times their gates.
    ExpertCombine {
        /// The mixture's sizes.
        shape: ExpertShape,
        /// The number of ranks that share the experts.
        ranks: usize,
    },
    /// A layer without a description as data; only its [`super::Layer::forward`] computes it.
    Own,
}
