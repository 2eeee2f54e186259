//! A cluster of equal nodes, joined by NICs and optionally a fat tree, with paths computed from one node's table.
//!
//! ```text
//! node 0   gpu0 -- gpu1     a path inside a node: from the node's table
//!           |       |       across: the sender's path out, the spine if it leaves the pod, the receiver's path in
//!          nic0    nic1
//!           |       |       pod: the nodes below one set of leaf switches
//!         leaf0   leaf1     spine: all uplinks of a pod together
//! ```
//!
//! A link of a family serves a block of consecutive ranks: a rank, a node or a pod. A hundred thousand ranks therefore take no more
//! memory than the table of one node.

use super::links::{Family, Link, LinkId};
use crate::Rank;

/// A link of a path: its family, and whether it is the receiver's link of that family or the sender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub family: u16,
    pub receiver: bool,
}

/// A family of links, before its links are numbered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kind {
    pub name: String,
    /// The number of consecutive ranks that share one link.
    pub block: u32,
    pub link: Link,
}

/// The paths within a node and between a node and the network, for each device of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// The number of ranks of a node.
    pub devices: u32,
    /// The number of ranks of a pod; 0 if there is no spine.
    pub pod: u32,
    /// The path from device i to device j of a node, at index `i * devices + j`.
    pub inside: Vec<Vec<Hop>>,
    /// The path from each device to the network.
    pub out: Vec<Vec<Hop>>,
    /// The path from the network to each device.
    pub into: Vec<Vec<Hop>>,
    /// The leaf of each device's NIC. Of the paths between nodes, only those within a leaf of one pod do not use the spine.
    pub leaf: Vec<u16>,
    /// The hop from each device's leaf to the spine (`up`), and from the spine to each device's leaf (`down`).
    pub up: Vec<Hop>,
    pub down: Vec<Hop>,
    /// The families of the links that leave a node (`nics`) and a pod (`spine`).
    pub nics: Vec<u16>,
    pub spine: Vec<u16>,
}

impl Cluster {
    fn hops(&self, from: Rank, to: Rank) -> impl Iterator<Item = Hop> + '_ {
        let n = self.devices;
        let (a, b) = ((from.0 % n) as usize, (to.0 % n) as usize);
        let same = from.0 / n == to.0 / n;
        let spine =
            !same && self.pod > 0 && (from.0 / self.pod != to.0 / self.pod || self.leaf[a] != self.leaf[b]);
        let inside = if same { &self.inside[a * n as usize + b][..] } else { &[] };
        let (out, into) = if same { (&[][..], &[][..]) } else { (&self.out[a][..], &self.into[b][..]) };
        let over = spine.then(|| [self.up[a], self.down[b]]).into_iter().flatten();
        inside.iter().chain(out).copied().chain(over).chain(into.iter().copied())
    }

    /// The links of the path from one rank to another, in order.
    pub(super) fn route(&self, families: &[Family], from: Rank, to: Rank) -> impl Iterator<Item = LinkId> {
        self.hops(from, to).map(move |hop| {
            let family = &families[usize::from(hop.family)];
            LinkId(family.first + if hop.receiver { to.0 } else { from.0 } / family.block)
        })
    }

    /// The bandwidth at which data can leave, or enter, a rank, a node, a pod and the first `ranks` ranks together.
    pub(super) fn ports(&self, families: &[Family], ranks: u32) -> Ports {
        let rate = |family: u16| u128::from(families[usize::from(family)].link.bandwidth.0);
        let n = self.devices as usize;
        let used = (ranks as usize).min(n);
        let across = ranks > self.devices;
        // The first link of a path belongs to the sender's port, the last one to the receiver's.
        let port = |device: usize, sends: bool| {
            let end = |path: &Vec<Hop>| if sends { path.first() } else { path.last() }.map(|hop| hop.family);
            let peers = (0..used).filter(|peer| *peer != device);
            let inside = peers.filter_map(|peer| {
                let at = if sends { device * n + peer } else { peer * n + device };
                end(&self.inside[at])
            });
            let network = if sends { self.out.get(device) } else { self.into.get(device) };
            let network = network.and_then(end).filter(|_| across);
            let mut families: Vec<u16> = inside.chain(network).collect();
            families.sort_unstable();
            families.dedup();
            families.into_iter().map(rate).sum::<u128>()
        };
        let ports: Vec<u128> = (0..used).map(|device| port(device, true).max(port(device, false))).collect();
        let nodes = u128::from(ranks.div_ceil(self.devices));
        let blocks = |family: u16, size: u32| u128::from((size / families[usize::from(family)].block).max(1));
        let total = |families: &[u16], size: u32| -> u128 {
            families.iter().map(|&family| rate(family) * blocks(family, size)).sum()
        };
        Ports {
            rank: ports.iter().copied().max().unwrap_or(0),
            ranks: ports.iter().sum::<u128>() * nodes,
            node: total(&self.nics, self.devices),
            pod: total(&self.spine, self.pod),
        }
    }

    /// Whether the devices of a node are on different leaves, so that paths within a pod cross the spine as well.
    pub(super) fn has_rails(&self) -> bool {
        self.pod > 0 && self.leaf.iter().any(|leaf| *leaf != self.leaf[0])
    }

    /// Whether renumbering the devices of a node by xor maps the node, with its NICs, to itself.
    pub(super) fn is_even(&self, families: &[Family]) -> bool {
        let power = |n: u32| n.is_power_of_two();
        let even = |hops: &Vec<Hop>| {
            hops.iter().all(|hop| {
                let block = families[usize::from(hop.family)].block;
                block < self.devices || self.devices == 1
            })
        };
        power(self.devices)
            && (self.pod == 0 || power(self.pod))
            && !self.has_rails()
            && families.iter().all(|family| power(family.block))
            && self.inside.iter().chain(&self.out).chain(&self.into).all(even)
    }
}

/// Upper limits of the bandwidth at which data can leave, or enter, parts of a cluster, in bytes per second; zero for a part that
/// no data leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    /// The limit of the rank with the fastest port.
    pub rank: u128,
    /// The limit of all ranks together.
    pub ranks: u128,
    /// The limit of one node.
    pub node: u128,
    /// The limit of one pod.
    pub pod: u128,
}
