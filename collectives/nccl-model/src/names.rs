//! NCCL's names for algorithms and protocols, in NCCL's order: of two equal times the first candidate is chosen.

allfold_sim::named! {
    /// NCCL's algorithms: how ranks are connected for a call.
    pub enum NcclAlgorithm {
        /// Chains within nodes, a double binary tree across nodes.
        Tree = "Tree",
        /// Rings.
        Ring = "Ring",
        /// Reduction in the network's switches, every GPU to its own NIC.
        CollNetDirect = "CollNetDirect",
        /// Reduction in the network's switches, with a chain of GPUs within each node.
        CollNetChain = "CollNetChain",
        /// Reduction and multicast in the NVLink switch.
        Nvls = "NVLS",
        /// Reduction in the NVLink switch within nodes, trees across nodes.
        NvlsTree = "NVLSTree",
        /// Parallel aggregated trees: all-gather and reduce-scatter with a logarithmic number of steps.
        Pat = "PAT",
    }
}

allfold_sim::named! {
    /// NCCL's protocols: flags in every 8 bytes, in every 128 bytes, or separate from the data.
    pub enum Protocol {
        /// Half of every 8 bytes is a flag: lowest latency.
        Ll = "LL",
        /// 8 of every 128 bytes are a flag: needs links, such as NVLink, that keep the order of stores.
        Ll128 = "LL128",
        /// A flag after each chunk: highest bandwidth.
        Simple = "Simple",
    }
}
