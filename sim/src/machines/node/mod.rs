//! One node as a drawing: devices, switches, NICs and the wires between them; and the cluster that many of it make.
//!
//! ```text
//! gpu0 ==== gpu1        ====  NVLink           a device talks over NVLink where there is any, through one other device
//!  |          |         ----  PCI Express      where NVLink does not join the two, and over PCI Express else;
//! plx0 ----- nic0                              with the network through the NICs nearest to it
//! ```
//!
//! Presets and NCCL's topology files both end up here, so that they cannot come to mean different things.

mod build;
mod flow;
mod nics;
mod paths;
#[cfg(test)]
mod tests;

pub use build::Fabrics;

use flow::Flow;

/// What a wire is. It decides which way traffic takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// NVLink, directly or to an NVLink switch.
    NvLink,
    /// PCI Express, between sockets, or through host memory.
    Pci,
}

/// A wire, as fast in one direction as in the other.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLink {
    /// One end: a device by its number, other place p as `devices + p`.
    pub a: u32,
    /// The other end of the link.
    pub b: u32,
    /// GB/s (1e9) each way.
    pub gb_per_s: f64,
    /// Nanoseconds of flight.
    pub nanos: u64,
    /// The kind of the link.
    pub kind: LinkKind,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// The place it hangs on: a PCI switch, a CPU, or a device.
    pub place: u32,
    /// Gb/s of its port, one way.
    pub gbit_per_s: f64,
    /// GB/s of what ties it to that place.
    pub gb_per_s: f64,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What the machine is called.
    pub name: String,
    /// Devices, numbered from 0.
    pub devices: u32,
    /// Every other place.
    pub places: Vec<String>,
    /// The links between all of these devices.
    pub links: Vec<NodeLink>,
    /// The NICs of the node.
    pub nics: Vec<Nic>,
    /// Nanoseconds from a NIC through the network to a NIC.
    pub network_nanos: u64,
}

impl Node {
    /// What a place is called in the names of links.
    pub fn place(&self, at: u32) -> String {
        match at.checked_sub(self.devices) {
            None => format!("gpu{at}"),
            Some(other) => {
                self.places.get(other as usize).cloned().unwrap_or_else(|| format!("place{other}"))
            }
        }
    }

    /// Adds a place and gives its number.
    pub fn add(&mut self, name: impl Into<String>) -> u32 {
        self.places.push(name.into());
        self.devices + self.places.len() as u32 - 1
    }

    /// Adds a wire.
    pub fn join(&mut self, a: u32, b: u32, gb_per_s: f64, nanos: u64, kind: LinkKind) {
        self.links.push(NodeLink { a, b, gb_per_s, nanos, kind });
    }

    /// GB/s that a device can put into NVLink; 0 where it has none.
    pub fn nvlink_gb_per_s(&self, device: u32) -> f64 {
        let ends = |wire: &&NodeLink| wire.kind == LinkKind::NvLink && (wire.a == device || wire.b == device);
        self.links.iter().filter(ends).fold(0.0, |sum, wire| sum + wire.gb_per_s)
    }

    /// GB/s that all NICs together can send.
    pub fn network_gb_per_s(&self) -> f64 {
        self.nics.iter().map(|nic| nic.gbit_per_s / 8.0).sum()
    }

    /// The least, over all halves of the devices, of what NVLink (or PCI Express) carries from one to the other, in
    /// GB/s one way; up to 16 devices are tried in full.
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
