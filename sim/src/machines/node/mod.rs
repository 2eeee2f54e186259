//! A node as a graph of devices, switches, NICs and links, and the cluster that many such nodes form.
//!
//! ```text
//! gpu0 ==== gpu1        ====  NVLink           devices communicate over NVLink, directly or through other devices, or else
//!  |          |         ----  PCI Express      over PCI Express; a device reaches the network over PCI Express, by the NICs
//! plx0 ----- nic0                              nearest to it
//! ```
//!
//! A *place* is a vertex of the graph: a device, a switch or a CPU. Presets and NCCL's topology files both become such a graph, so
//! equal machines get equal topologies from either.

mod build;
mod flow;
mod nics;
mod paths;
#[cfg(test)]
mod tests;

pub use build::Fabrics;

use flow::Flow;

/// The kind of a link inside a node, which decides the paths that traffic takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// NVLink, directly or to an NVLink switch.
    NvLink,
    /// PCI Express, a link between sockets, or a path through host memory.
    Pci,
}

/// A link inside a node, with the same speed in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLink {
    /// One end of the link: a device by its number, or entry p of [`Node::places`] as `devices + p`.
    pub a: u32,
    /// The other end of the link.
    pub b: u32,
    /// Bandwidth in each direction, in GB/s (1e9).
    pub gb_per_s: f64,
    /// Latency in nanoseconds.
    pub nanos: u64,
    /// The kind of the link.
    pub kind: LinkKind,
}

/// A NIC of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// The place that the NIC is attached to: a PCI switch, a CPU, or a device.
    pub place: u32,
    /// Speed of the NIC's port in one direction, in Gb/s.
    pub gbit_per_s: f64,
    /// Speed of the link between the NIC and its place, in GB/s.
    pub gb_per_s: f64,
}

/// A node of a cluster, as a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The machine's name.
    pub name: String,
    /// The number of devices; devices are the places from 0.
    pub devices: u32,
    /// The names of all other places (switches, CPUs).
    pub places: Vec<String>,
    /// The links between devices and other places.
    pub links: Vec<NodeLink>,
    /// The NICs of the node.
    pub nics: Vec<Nic>,
    /// Latency from NIC to NIC through the network, in nanoseconds.
    pub network_nanos: u64,
}

impl Node {
    /// The name of a place in the names of links.
    pub fn place(&self, at: u32) -> String {
        match at.checked_sub(self.devices) {
            None => format!("gpu{at}"),
            Some(other) => {
                self.places.get(other as usize).cloned().unwrap_or_else(|| format!("place{other}"))
            }
        }
    }

    /// Adds a place called `name` and returns its number.
    pub fn add(&mut self, name: impl Into<String>) -> u32 {
        self.places.push(name.into());
        self.devices + self.places.len() as u32 - 1
    }

    /// Adds a link between the places `a` and `b`.
    pub fn join(&mut self, a: u32, b: u32, gb_per_s: f64, nanos: u64, kind: LinkKind) {
        self.links.push(NodeLink { a, b, gb_per_s, nanos, kind });
    }

    /// Bandwidth of all NVLinks of a device in one direction, in GB/s; 0 for a device without NVLink.
    pub fn nvlink_gb_per_s(&self, device: u32) -> f64 {
        let ends = |wire: &&NodeLink| wire.kind == LinkKind::NvLink && (wire.a == device || wire.b == device);
        self.links.iter().filter(ends).fold(0.0, |sum, wire| sum + wire.gb_per_s)
    }

    /// Bandwidth of all NICs together in one direction, in GB/s.
    pub fn network_gb_per_s(&self) -> f64 {
        self.nics.iter().map(|nic| nic.gbit_per_s / 8.0).sum()
    }

    /// The bisection bandwidth in GB/s, one way: the least, over all halves of the devices, of what NVLink (or PCI Express) carries
    /// from one half to the other. All halves are tried for up to 16 devices; for more, half of the devices' NVLinks are summed.
    pub fn bisection_gb_per_s(&self) -> f64 {
        let (n, places) = (self.devices, self.devices as usize + self.places.len());
        if !(2..=16).contains(&n) {
            let half: f64 = (0..n / 2).map(|device| self.nvlink_gb_per_s(device)).sum();
            return half;
        }
        let has_nvlink = self.links.iter().any(|wire| wire.kind == LinkKind::NvLink);
        let halves = (0u32..1 << n).filter(|set| set.count_ones() == n / 2);
        let cut = |set: u32| {
            let mut flow = Flow::new(places + 2);
            let (source, sink) = (places, places + 1);
            for device in 0..n {
                match set >> device & 1 {
                    1 => flow.edge(source, device as usize, f64::INFINITY),
                    _ => flow.edge(device as usize, sink, f64::INFINITY),
                }
            }
            for wire in self.links.iter().filter(|wire| !has_nvlink || wire.kind == LinkKind::NvLink) {
                flow.edge(wire.a as usize, wire.b as usize, wire.gb_per_s);
                flow.edge(wire.b as usize, wire.a as usize, wire.gb_per_s);
            }
            flow.max(source, sink)
        };
        halves.map(cut).fold(f64::INFINITY, f64::min)
    }
}
