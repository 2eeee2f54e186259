//! A kernel of a layer table: its class, and the amount of its work.

/// The class of a kernel, which decides the share of the peak rate that it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
