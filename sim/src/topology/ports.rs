//! Partitions of the ranks into groups, and the bandwidth in and out of each group.
//!
//! ```text
//! nodes8    [0 1 2 3 4 5 6 7]=NICs=[8 9 ..]     by rank: a device's port and its NIC; by node: the NICs
//! ring      0 = 1 = 2 = 3 = (0)                 by rank: both neighbours; in halves: the two links at the cuts
//! ```

use super::Topology;
use super::wiring::Wiring;

/// The ranks in `count` groups of `size`; the last group may be smaller. Bandwidths are in bytes per second, each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// The number of ranks in all groups.
    pub ranks: u32,
    /// The number of ranks of a full group.
    pub size: u32,
    /// The number of groups, 2 or more.
    pub count: u32,
    /// The bandwidth at which data can leave, or enter, the group with the most bandwidth.
    pub each: u128,
    /// The bandwidth at which data can leave, or enter, all groups together.
    pub total: u128,
}

impl Topology {
    /// The partitions of the ranks that bound the speed of any collective; none for a single rank.
    pub fn port_groups(&self) -> Vec<PortGroup> {
        let ranks = self.ranks;
        if ranks < 2 {
            return Vec::new();
        }
        let family = |at: usize| {
            let family = &self.families[at];
            (u128::from(family.link.bandwidth.0), u128::from(family.count))
        };
        let alike = |size: u32, each: u128| {
            let count = ranks.div_ceil(size);
            PortGroup { ranks, size, count, each, total: each * u128::from(count) }
        };
        match self.wiring {
            Wiring::Switch => vec![alike(1, family(0).0)],
            Wiring::Ring => {
                let both = family(0).0 + family(1).0;
                vec![alike(1, both), alike(ranks.div_ceil(2), both)]
            }
            Wiring::Mesh => vec![alike(1, family(0).0 * u128::from(ranks - 1))],
            Wiring::Nodes { devices, nics } => {
                let ((port, ports), (nic, count)) = (family(0), family(2));
                let by_rank =
                    PortGroup { each: port + nic, total: port * ports + nic * count, ..alike(1, 0) };
                let by_node = alike(devices, nic * u128::from(nics));
                // Traffic within a single node does not cross the NICs.
                if by_node.count > 1 { vec![by_rank, by_node] } else { vec![alike(1, port)] }
            }
            Wiring::Cluster { devices, pod } => {
                let Some(cluster) = &self.cluster else { return Vec::new() };
                let ports = cluster.ports(&self.families, ranks);
                let mut groups = vec![PortGroup { each: ports.rank, total: ports.ranks, ..alike(1, 0) }];
                groups.extend((ranks > devices).then(|| alike(devices, ports.node)));
                groups.extend((pod > 0 && ranks > pod).then(|| alike(pod, ports.pod)));
                groups
            }
            Wiring::Graph => {
                let of_ranks = |(each, total)| PortGroup { each, total, ..alike(1, 0) };
                self.graph.iter().map(|graph| of_ranks(graph.ports(ranks))).collect()
            }
        }
    }
}
