//! The GPUs of a job and their network, as far as the time of a step depends on them.

use allfold_sim::machines::Generation;

/// One kind of GPU in equal nodes. Bandwidths are of one direction, in bytes a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The GPU's name, as the table of GPUs has it.
    pub gpu: String,
    /// The generation, by which kernels differ.
    pub generation: Generation,
    /// FLOP/s of dense products with 16-bit, FP8 and FP4 operands.
    pub flops: [f64; 3],
    /// Bandwidth of the memory, in bytes a second.
    pub memory: f64,
    /// Size of the memory in bytes.
    pub capacity: f64,
    /// Multiprocessors.
    pub cores: u32,
    /// Bandwidth of the links to the GPUs of the same NVLink domain, nominal.
    pub links: f64,
    /// GPUs of an NVLink domain: those of a node, or of a rack.
    pub domain: u32,
    /// GPUs of a node.
    pub node: u32,
    /// A GPU's share of its node's NICs, nominal.
    pub nic: f64,
    /// Whether the network is Omni-Path.
    pub omni_path: bool,
    /// Whether the GPU's power is limited below its usual figure.
    pub limited_power: bool,
}
