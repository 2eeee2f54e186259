//! What the tuner knows of a machine: how many nodes and ranks, and the channels that the graph search found.

/// Generation of the GPUs, by the tables that have a row for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    /// Compute capability 7.x and older.
    Volta,
    /// 8.x.
    Ampere,
    /// 9.x.
    Hopper,
    /// 10.x and later.
    Blackwell,
}

/// The vendor of the nodes' CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCpu {
    /// x86 by Intel.
    Intel,
    /// x86 by AMD, or both kinds in one job.
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
    /// How many channels.
    pub channels: u32,
    /// GB/s of one channel inside a node.
    pub inside: f64,
    /// GB/s of one channel across nodes.
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

    /// This graph across nodes, at `speed` GB/s per channel.
    pub fn across(self, speed: f64) -> Graph {
        Graph { across: speed, ..self }
    }
}

/// A machine as the tuner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Platform {
    /// Nodes; 1 or more.
    pub nodes: u32,
    /// Ranks over all nodes; at least one per node.
    pub ranks: u32,
    /// Generation of the GPUs.
    pub arch: Arch,
    /// The vendor of the CPUs.
    pub cpu: HostCpu,
    /// The links between the GPUs of a node.
    pub links: Inside,
    /// Whether the GPUs of a node are joined by NVLink switches.
    pub nvswitch: bool,
    /// Whether stores over the links keep their order, so that LL128 may be used.
    pub ll128: bool,
    /// Whether the library has PAT (2.23 and later).
    pub pat: bool,
    /// Channels that run for each that the search found.
    pub doubled: u32,
    /// The rings; PAT uses their channels.
    pub ring: Graph,
    /// The trees.
    pub tree: Graph,
    /// The NVLink switch's channels, where it reduces.
    pub nvls: Option<Graph>,
    /// The network switches' channels, where they reduce.
    pub collnet: Option<Graph>,
}

impl Platform {
    /// `ranks` GPUs on `nodes` nodes with NVLink and Intel CPUs, rings and trees over the same channels; neither
    /// NVLink nor network switches reduce.
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

    /// Ranks per node, rounded down.
    pub fn ranks_per_node(&self) -> u32 {
        (self.ranks / self.nodes.max(1)).max(1)
    }
}
