//! A kernel of a layer table: its class, and the amount of its work.

use serde::Deserialize;

/// The class of a kernel, which decides the share of the peak rate that it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A matrix product.
    Product,
    /// A convolution.
    Convolution,
    /// Attention's products and softmax.
    Attention,
    /// Batch or layer normalisation.
    Normalisation,
    /// Element by element; pooling; embeddings.
    Elementwise,
}

/// The cost per sample of one kernel, or of a few that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCost {
    /// The kernel's class, which decides on the fraction of the device's rates that it reaches.
    pub class: Class,
    /// Floating-point operations for one sample; a multiply-add is two.
    pub flops: u64,
    /// The number of values read and written for one sample.
    pub values: u64,
    /// The number of values read and written whatever the number of samples is: weights.
    pub weights: u64,
    /// The number of launches.
    pub launches: u32,
}

impl KernelCost {
    /// One launch over one sample: operations, numbers read and written, and weights read.
    pub(super) fn new(class: Class, flops: usize, values: usize, weights: usize) -> KernelCost {
        let (flops, values, weights) = (flops as u64, values as u64, weights as u64);
        KernelCost { class, flops, values, weights, launches: 1 }
    }
}
