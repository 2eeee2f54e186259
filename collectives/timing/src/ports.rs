//! Partitions of the ranks, and what can pass in and out of their groups.
//!
//! ```text
//! nodes8    [0 1 2 3 4 5 6 7]=NICs=[8 9 ..]     by rank: a device's port and its NIC; by node: the NICs
//! ring      0 = 1 = 2 = 3 = (0)                 by rank: both neighbours; in halves: the two places of the cut
//! ```

use allfold_sim::Topology;
use allfold_sim::topology::Wiring;

/// The ranks in `count` groups of `size`, the last one perhaps smaller. Bandwidths in bytes per second, each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// All ranks.
    pub ranks: u32,
    /// Ranks of a full group.
    pub size: u32,
    /// Groups, 2 or more.
    pub count: u32,
    /// What can leave, or enter, the best of the groups.
    pub each: u128,
    /// What can leave, or enter, all groups together.
    pub total: u128,
}

/// The partitions that bound a collective on this topology; none for a single rank.
pub(crate) fn groups(topology: &Topology) -> Vec<Group> {
    let ranks = topology.ranks();
    if ranks < 2 {
        return Vec::new();
    }
    let family = |at: usize| {
        let family = &topology.families()[at];
        (u128::from(family.link.bandwidth.0), u128::from(family.count))
    };
    let alike = |size: u32, each: u128| {
        let count = ranks.div_ceil(size);
        Group { ranks, size, count, each, total: each * u128::from(count) }
    };
    match topology.wiring() {
        Wiring::Switch => vec![alike(1, family(0).0)],
        Wiring::Ring => {
            let both = family(0).0 + family(1).0;
            vec![alike(1, both), alike(ranks.div_ceil(2), both)]
        }
        Wiring::Mesh => vec![alike(1, family(0).0 * u128::from(ranks - 1))],
        Wiring::Nodes { devices, nics } => {
            let ((port, ports), (nic, count)) = (family(0), family(2));
            let by_rank = Group { each: port + nic, total: port * ports + nic * count, ..alike(1, 0) };
            let by_node = alike(devices, nic * u128::from(nics));
            // Within one node nothing crosses the NICs.
            if by_node.count > 1 { vec![by_rank, by_node] } else { vec![alike(1, port)] }
        }
        Wiring::Cluster { devices, pod } => {
            let Some(ports) = topology.cluster_ports() else { return Vec::new() };
            let mut groups = vec![Group { each: ports.rank, total: ports.ranks, ..alike(1, 0) }];
            groups.extend((ranks > devices).then(|| alike(devices, ports.node)));
            groups.extend((pod > 0 && ranks > pod).then(|| alike(pod, ports.pod)));
            groups
        }
        Wiring::Graph => {
            let of_ranks = |(each, total)| Group { each, total, ..alike(1, 0) };
            topology.graph_ports().map(of_ranks).into_iter().collect()
        }
    }
}
