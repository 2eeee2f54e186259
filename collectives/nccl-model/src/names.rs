//! NCCL's names for algorithms and protocols, in NCCL's order: of two equal times the first candidate is chosen.

use std::fmt;

/// NCCL's algorithms: how ranks are connected for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NcclAlgorithm {
    /// Chains within nodes, a double binary tree across nodes.
    Tree,
    /// Rings.
    Ring,
    /// Reduction in the network's switches, every GPU to its own NIC.
    CollNetDirect,
    /// Reduction in the network's switches, with a chain of GPUs within each node.
    CollNetChain,
    /// Reduction and multicast in the NVLink switch.
    Nvls,
    /// Reduction in the NVLink switch within nodes, trees across nodes.
    NvlsTree,
    /// Parallel aggregated trees: all-gather and reduce-scatter with a logarithmic number of steps.
    Pat,
}

/// NCCL's protocols: flags in every 8 bytes, in every 128 bytes, or separate from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Half of every 8 bytes is a flag: lowest latency.
    Ll,
    /// 8 of every 128 bytes are a flag: needs links, such as NVLink, that keep the order of stores.
    Ll128,
    /// A flag after each chunk: highest bandwidth.
    Simple,
}

impl NcclAlgorithm {
    /// All algorithms, in NCCL's order.
    pub const ALL: [NcclAlgorithm; 7] = [
        NcclAlgorithm::Tree,
        NcclAlgorithm::Ring,
        NcclAlgorithm::CollNetDirect,
        NcclAlgorithm::CollNetChain,
        NcclAlgorithm::Nvls,
        NcclAlgorithm::NvlsTree,
        NcclAlgorithm::Pat,
    ];

    /// The algorithm's name in `NCCL_ALGO`.
    pub const fn name(self) -> &'static str {
        match self {
            NcclAlgorithm::Tree => "Tree",
            NcclAlgorithm::Ring => "Ring",
            NcclAlgorithm::CollNetDirect => "CollNetDirect",
            NcclAlgorithm::CollNetChain => "CollNetChain",
            NcclAlgorithm::Nvls => "NVLS",
            NcclAlgorithm::NvlsTree => "NVLSTree",
            NcclAlgorithm::Pat => "PAT",
        }
    }
}

impl Protocol {
    /// All protocols, in NCCL's order.
    pub const ALL: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

    /// The protocol's name in `NCCL_PROTO`.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Ll => "LL",
            Protocol::Ll128 => "LL128",
            Protocol::Simple => "Simple",
        }
    }
}

impl fmt::Display for NcclAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
