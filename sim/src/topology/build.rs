//! Constructors of topologies of every shape, from the properties of their links.

use super::Topology;
use super::cluster::{Cluster, Kind};
use super::graph::{Edge, Graph};
use super::links::{Family, Link};
use super::wiring::Wiring;
use crate::{Costs, Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Topology {
    /// A single non-blocking switch; every rank has one port with bandwidth and latency `link` in each direction. Path latency is
    /// `2 x link.latency`.
    pub fn switch(ranks: u32, link: Link) -> Result<Topology> {
        Topology::build("switch", ranks, Wiring::Switch, &[("up", 1, link), ("down", 1, link)])
    }

    /// A physical ring: every rank has a link to each of its two neighbours, `link` in each direction.
    pub fn ring(ranks: u32, link: Link) -> Result<Topology> {
        Topology::build("ring", ranks, Wiring::Ring, &[("cw", 1, link), ("ccw", 1, link)])
    }

    /// A full mesh: one link for every ordered pair of ranks.
    pub fn mesh(ranks: u32, link: Link) -> Result<Topology> {
        if ranks.checked_mul(ranks.saturating_sub(1)).is_none() {
            return Err(Error::Topology(format!(
                "{ranks} ranks of a full mesh need more than 2^32 links; use fewer ranks"
            )));
        }
        let names: Vec<String> = (1..ranks).map(|d| format!("to+{d}")).collect();
        let kinds: Vec<_> = names.iter().map(|name| (name.as_str(), 1, link)).collect();
        Topology::build("mesh", ranks, Wiring::Mesh, &kinds)
    }

    /// Nodes of `devices` ranks with `nics` NICs each. `nics` must divide `devices`; the last node may be partly filled.
    pub fn nodes(ranks: u32, devices: u32, nics: u32, device: Link, nic: Link) -> Result<Topology> {
        if devices == 0 || nics == 0 || !devices.is_multiple_of(nics) {
            return Err(Error::Topology(format!(
                "{devices} devices cannot share {nics} NICs evenly; give a number of NICs that divides the devices"
            )));
        }
        let share = devices / nics;
        let name = if devices == nics { format!("nodes{devices}") } else { format!("nodes{devices}x{nics}") };
        Topology::build(
            &name,
            ranks,
            Wiring::Nodes { devices, nics },
            &[("up", 1, device), ("down", 1, device), ("nic_out", share, nic), ("nic_in", share, nic)],
        )
    }

    /// A cluster of equal nodes, from its link families `kinds` and the paths within a node and to the network.
    pub(crate) fn cluster(name: &str, ranks: u32, kinds: &[Kind], cluster: Cluster) -> Result<Topology> {
        let families: Vec<(&str, u32, Link)> =
            kinds.iter().map(|kind| (kind.name.as_str(), kind.block, kind.link)).collect();
        if cluster.devices == 0 || families.len() > usize::from(u16::MAX) {
            return Err(Error::Topology(format!(
                "{name}: a node of {} devices with {} kinds of links; a node has 1 device or more and at most {} kinds",
                cluster.devices,
                families.len(),
                u16::MAX
            )));
        }
        let wiring = Wiring::Cluster { devices: cluster.devices, pod: cluster.pod };
        let mut topology = Topology::build(name, ranks, wiring, &families)?;
        topology.cluster = Some(Arc::new(cluster));
        Ok(topology)
    }

    /// An explicit graph of `ranks` ranks and the named switches. Every rank must reach every other rank.
    pub fn graph(ranks: u32, switches: &[String], edges: Vec<Edge>) -> Result<Topology> {
        let mut names = BTreeSet::new();
        if let Some(twice) = switches.iter().find(|name| !names.insert(*name)) {
            return Err(Error::Topology(format!(
                "two switches are called `{twice}`; give each a name of its own"
            )));
        }
        let places = ranks as usize + switches.len();
        let name = |place: u32| match (place as usize).checked_sub(ranks as usize) {
            None => format!("rank{place}"),
            Some(switch) => switches[switch].clone(),
        };
        let mut families = Vec::with_capacity(edges.len());
        for (number, Edge { from, to, link }) in edges.iter().enumerate() {
            if (*from).max(*to) as usize >= places {
                return Err(Error::Topology(format!(
                    "a link joins numbers {from} and {to}, but there are only {places} ranks and switches"
                )));
            }
            let (first, name) = (number as u32, format!("{}>{}", name(*from), name(*to)));
            families.push(Family { name, first, block: ranks, count: 1, link: *link });
        }
        let kinds: Vec<(&str, u32, Link)> =
            families.iter().map(|f| (f.name.as_str(), ranks, f.link)).collect();
        let mut topology = Topology::build("graph", ranks, Wiring::Graph, &kinds)?;
        let graph = Graph::new(ranks, places, edges);
        graph.check_connected(ranks)?;
        topology.graph = Some(Arc::new(graph));
        Ok(topology)
    }

    fn build(name: &str, ranks: u32, wiring: Wiring, kinds: &[(&str, u32, Link)]) -> Result<Topology> {
        if ranks == 0 {
            return Err(Error::Topology("the topology has 0 ranks; it must have 1 or more".into()));
        }
        let mut first: u32 = 0;
        let mut families = Vec::with_capacity(kinds.len());
        for &(kind, block, link) in kinds {
            if link.bandwidth.0 == 0 {
                return Err(Error::Topology(format!(
                    "link `{kind}` has no bandwidth; give 1 byte/s or more"
                )));
            }
            let count = ranks.div_ceil(block);
            families.push(Family { name: kind.into(), first, block, count, link });
            first = first.checked_add(count).ok_or_else(|| {
                Error::Topology(format!("{ranks} ranks need more than 2^32 links; use fewer ranks"))
            })?;
        }
        Ok(Topology {
            name: name.into(),
            ranks,
            wiring,
            families,
            graph: None,
            cluster: None,
            costs: Costs::default(),
            notes: Vec::new(),
        })
    }
}
