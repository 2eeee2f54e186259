//! A machine as NCCL's tuner sees it: the numbers of nodes and ranks, and the channels that the graph search found.

/// The generation of the GPUs; each has a row in the tuner's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    /// Compute capability 7.x and older.
    Volta,
    /// Compute capability 8.x.
    Ampere,
    /// Compute capability 9.x.
    Hopper,
    /// Compute capability 10.x and later.
    Blackwell,
}

/// The vendor of the nodes' CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCpu {
    /// x86 by Intel.
    Intel,
    /// x86 by AMD, or Intel and AMD in one job.
    Amd,
    /// IBM POWER.
    Power,
    /// Any other processor, such as Arm.
    Other,
}

/// The links between the GPUs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// NVLink, with or without switches.
    NvLink,
    /// PCI Express.
    Pci,
}

/// The result of the graph search for one algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Graph {
    /// The number of channels.
    pub channels: u32,
    /// Bandwidth of one channel within a node, in GB/s.
    pub inside: f64,
    /// Bandwidth of one channel across nodes, in GB/s.
    pub across: f64,
    /// Latency that the NIC declares, in microseconds.
    pub nic_us: f64,
    /// Whether all channels visit the GPUs in the same order.
    pub same_channels: bool,
}

impl Graph {
    /// Channels of `speed` GB/s each inside one node.
    pub fn inside(channels: u32, speed: f64) -> Graph {
        Graph { channels, inside: speed, across: speed, nic_us: 0.0, same_channels: true }
    }

    /// This graph with `speed` GB/s per channel across nodes.
    pub fn across(self, speed: f64) -> Graph {
        Graph { across: speed, ..self }
    }
}

/// A machine as NCCL's tuner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Platform {
    /// The number of nodes; 1 or more.
    pub nodes: u32,
    /// The number of ranks on all nodes; at least one per node.
    pub ranks: u32,
    /// Generation of the GPUs.
    pub arch: Arch,
    /// The vendor of the CPUs.
    pub cpu: HostCpu,
    /// The links between the GPUs of a node.
    pub links: Inside,
    /// Whether NVLink switches connect the GPUs of a node.
    pub nvswitch: bool,
    /// Whether stores over the links keep their order, so that LL128 may be used.
    pub ll128: bool,
    /// Whether the NCCL library supports PAT (2.23 and later).
    pub pat: bool,
    /// The number of channels that run for each channel that the search found.
    pub doubled: u32,
    /// The channels of rings; PAT uses them, too.
    pub ring: Graph,
    /// The channels of trees.
    pub tree: Graph,
    /// The channels of the NVLink switch; `None` if it does not reduce.
    pub nvls: Option<Graph>,
    /// The channels of the network's switches; `None` if they do not reduce.
    pub collnet: Option<Graph>,
}

impl Platform {
    /// A platform of `ranks` GPUs on `nodes` nodes with NVLink and Intel CPUs, with rings and trees over the same channels; neither
    /// NVLink switches nor network switches reduce.
    pub fn nvlink(arch: Arch, nodes: u32, ranks: u32, graph: Graph) -> Platform {
        Platform {
            nodes,
            ranks,
            arch,
            cpu: HostCpu::Intel,
            links: Inside::NvLink,
            nvswitch: false,
            ll128: true,
            pat: true,
            doubled: 2,
            ring: graph,
            tree: graph,
            nvls: None,
            collnet: None,
        }
    }

    /// The number of ranks per node, rounded down.
    pub fn ranks_per_node(&self) -> u32 {
        (self.ranks / self.nodes.max(1)).max(1)
    }
}
