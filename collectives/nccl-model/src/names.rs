//! NCCL's names of what it chooses among, in its order: of two equal times the first one wins.

use std::fmt;

/// How ranks are wired for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NcclAlgorithm {
    /// Chains inside nodes, a double binary tree across.
    Tree,
    /// Rings.
    Ring,
    /// Reduction in the network's switches, every GPU to its own NIC.
    CollNetDirect,
    /// CollNet by a chain inside the node.
    CollNetChain,
    /// Reduction and multicast in the NVLink switch.
    Nvls,
    /// NVLink switch inside nodes, trees across.
    NvlsTree,
    /// Parallel aggregated trees: all-gather and reduce-scatter in a logarithm of steps.
    Pat,
}

/// How bytes are moved: flags in every 8 bytes, in every 128, or beside the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Half of every 8 bytes is a flag: lowest latency.
    Ll,
    /// 8 of every 128 bytes are a flag: needs NVLink's ordered stores.
    Ll128,
    /// The protocol with a flag after whole chunks: highest bandwidth.
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
