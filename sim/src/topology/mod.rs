//! Ranks, the links between them, and the path that a transfer takes.
//!
//! Links are grouped into *families*. All links of a family have the same bandwidth and latency, and each serves a block of
//! consecutive ranks, so a machine of a hundred thousand ranks has a short description and paths are computed, not stored:
//!
//! ```text
//! switch    up[r] -> down[r']                                       a port per rank, each way
//! ring      cw[r] -> cw[r+1] ... or ccw[r] -> ..., the shorter way  links to both neighbours
//! mesh      to+d[r], where d is r' - r                              a link per ordered pair
//! nodes     inside: up[r] -> down[r']; across: nic_out -> nic_in    k devices and m NICs per node
//! cluster   equal nodes, all from one node's table; fat trees       machine presets
//! graph     any: ranks and switches joined by links, from a file    a family for every link
//! ```

mod build;
mod cluster;
mod file;
mod graph;
mod links;
mod ports;
mod symmetry;
mod wiring;

pub(crate) use cluster::{Cluster, Hop, Kind};
pub use graph::Edge;
pub use links::{Family, Link, LinkId};
pub use ports::PortGroup;
pub use symmetry::Symmetry;

use crate::{Costs, Error, Rank, Result, suggest};
use graph::Graph;
use std::sync::Arc;
use wiring::Wiring;

/// The ranks of a machine, its links, and the paths between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    name: String,
    ranks: u32,
    wiring: Wiring,
    families: Vec<Family>,
    /// The links of `Wiring::Graph`.
    graph: Option<Arc<Graph>>,
    /// The table of `Wiring::Cluster`.
    cluster: Option<Arc<Cluster>>,
    costs: Costs,
    /// What the reader of the topology completed or assumed.
    notes: Vec<String>,
}

impl Topology {
    /// The name by which the topology was selected.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This topology under another name.
    pub(crate) fn renamed(mut self, name: &str) -> Topology {
        self.name = name.into();
        self
    }

    /// This topology with notes on what its reader completed or assumed.
    pub(crate) fn with_notes(mut self, notes: Vec<String>) -> Topology {
        self.notes = notes;
        self
    }

    /// What the reader of a topology file completed or assumed, one line per item. Commands print these lines with their results.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The devices and the NICs of a node, and the link of a NIC, for nodes of the built-in kind or of a file with `kind = "nodes"`.
    pub fn node(&self) -> Option<(u32, u32, Link)> {
        match (self.wiring, self.families.last()) {
            (Wiring::Nodes { devices, nics }, Some(nic)) => Some((devices, nics, nic.link)),
            _ => None,
        }
    }

    /// The costs of messages and reductions on this machine: those of its file, else [`Costs::default`].
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// All links, by family.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The number of directed links; every `LinkId` is below this number.
    pub fn links(&self) -> u32 {
        self.families.last().map_or(0, |f| f.first + f.count)
    }

    /// The family of `link`.
    pub fn family(&self, link: LinkId) -> &Family {
        let at = self.families.partition_point(|f| f.first <= link.0);
        &self.families[at - 1]
    }

    /// The bandwidth and latency of `link`.
    pub fn link(&self, link: LinkId) -> Link {
        self.family(link).link
    }

    /// The name of a link: its family and its index in the family, such as `nic_out[3]`.
    pub fn link_name(&self, link: LinkId) -> String {
        let family = self.family(link);
        format!("{}[{}]", family.name, link.0 - family.first)
    }

    /// The link with a name such as `nic_out[3]`.
    pub fn find_link(&self, name: &str) -> Result<LinkId> {
        let parts = name.strip_suffix(']').and_then(|name| name.split_once('['));
        let Some((family, Ok(at))) = parts.map(|(family, at)| (family, at.parse::<u32>())) else {
            let example = self.families.first().map_or("up", |family| &family.name);
            return Err(Error::Topology(format!(
                "`{name}` is not a link; write its family and number, such as {example}[0]"
            )));
        };
        let Some(found) = self.families.iter().find(|f| f.name == family) else {
            return Err(Error::Topology(self.no_family(family)));
        };
        match at < found.count {
            true => Ok(LinkId(found.first + at)),
            false => Err(Error::Topology(format!(
                "link `{name}` does not exist; there are {family}[0] to {family}[{}]",
                found.count - 1
            ))),
        }
    }

    /// The error for the name of a link family that does not exist: the most similar of all names, and the first of them.
    fn no_family(&self, family: &str) -> String {
        const LISTED: usize = 8;
        let mut names: Vec<&str> = Vec::new();
        for name in self.families.iter().map(|f| f.name.as_str()) {
            if names.last() != Some(&name) {
                names.push(name);
            }
        }
        let hint = suggest::nearest(family, names.iter().copied())
            .map_or(String::new(), |name| format!("; did you mean `{name}`?"));
        let more = match names.len().saturating_sub(LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        names.truncate(LISTED);
        format!("no link family is called `{family}`{hint} (there are {}{more})", names.join(", "))
    }

    /// Appends to `path` the links that a transfer between two ranks occupies, in order. A rank's local move crosses no link, so
    /// nothing is appended if both ranks are the same.
    pub fn route(&self, from: Rank, to: Rank, path: &mut impl Extend<LinkId>) {
        if from == to {
            return;
        }
        let link = |family: usize, owner: u32| {
            let f = &self.families[family];
            LinkId(f.first + owner / f.block)
        };
        let n = self.ranks;
        match self.wiring {
            Wiring::Switch => path.extend([link(0, from.0), link(1, to.0)]),
            Wiring::Ring => {
                let ahead = (to.0 + n - from.0) % n;
                if ahead <= n - ahead {
                    path.extend((0..ahead).map(|hop| link(0, (from.0 + hop) % n)));
                } else {
                    path.extend((0..n - ahead).map(|hop| link(1, (from.0 + n - hop) % n)));
                }
            }
            Wiring::Mesh => path.extend([link(((to.0 + n - from.0) % n - 1) as usize, from.0)]),
            Wiring::Nodes { devices, .. } if from.0 / devices == to.0 / devices => {
                path.extend([link(0, from.0), link(1, to.0)]);
            }
            Wiring::Nodes { .. } => path.extend([link(2, from.0), link(3, to.0)]),
            Wiring::Cluster { .. } => {
                path.extend(self.cluster.iter().flat_map(|cluster| cluster.route(&self.families, from, to)));
            }
            Wiring::Graph => path.extend(self.graph.iter().flat_map(|graph| graph.route(from, to))),
        }
    }
}
