//! An explicit graph: ranks and named switches, joined by links of any bandwidth and latency.
//!
//! ```text
//! rank 0 ---+          +--- rank 2      a path has the fewest hops, among those the least latency, among
//!           leaf0 = leaf1               those the lowest-numbered links; it may lead through ranks
//! rank 1 ---+          +--- rank 3
//! ```
//!
//! A *place* is a rank or a switch. The paths from all places to a rank are computed when the first message is sent to that rank,
//! and are then stored: 4 bytes for every pair of a used destination and a place.

use super::links::{Link, LinkId};
use crate::{BytesPerSec, Error, Rank, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::OnceLock;

/// A directed link between two places: a rank is given by its number, switch s by `ranks + s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The place at which the link begins.
    pub from: u32,
    /// The place at which the link ends.
    pub to: u32,
    /// The link's bandwidth and latency.
    pub link: Link,
}

const NOWHERE: u32 = u32::MAX;

/// The graph, with the paths that have been computed so far.
#[derive(Debug)]
pub(super) struct Graph {
    edges: Vec<Edge>,
    /// The numbers of the edges that end at each place.
    into: Vec<Vec<u32>>,
    /// For each destination: the link that a path takes from each place.
    ways: Vec<OnceLock<Box<[u32]>>>,
}

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.edges == other.edges && self.ways.len() == other.ways.len()
    }
}

impl Eq for Graph {}

impl Graph {
    pub(super) fn new(ranks: u32, places: usize, edges: Vec<Edge>) -> Graph {
        let mut into = vec![Vec::new(); places];
        for (number, edge) in edges.iter().enumerate() {
            into[edge.to as usize].push(number as u32);
        }
        Graph { edges, into, ways: (0..ranks).map(|_| OnceLock::new()).collect() }
    }

    /// The links of the path from one rank to another, in order.
    pub(super) fn route(&self, from: Rank, to: Rank) -> impl Iterator<Item = LinkId> {
        let way = self.ways[to.index()].get_or_init(|| self.way_to(to.0));
        let mut at = from.0;
        std::iter::from_fn(move || {
            let edge = way[at as usize];
            (at != to.0 && edge != NOWHERE).then(|| {
                at = self.edges[edge as usize].to;
                LinkId(edge)
            })
        })
    }

    /// Checks that every rank can reach every other: all ranks reach rank 0, and rank 0 reaches all ranks.
    pub(super) fn check_connected(&self, ranks: u32) -> Result<()> {
        let broken =
            |from, to| Err(Error::Topology(format!("no links lead from rank {from} to rank {to}; add some")));
        let mut reached = vec![false; self.into.len()];
        let (mut out, mut next) = (vec![Vec::new(); self.into.len()], vec![0]);
        self.edges.iter().for_each(|edge| out[edge.from as usize].push(edge.to));
        while let Some(place) = next.pop() {
            if !std::mem::replace(&mut reached[place as usize], true) {
                next.extend(&out[place as usize]);
            }
        }
        for rank in 1..ranks {
            if self.route(Rank(rank), Rank(0)).next().is_none() {
                return broken(rank, 0);
            }
            if !reached[rank as usize] {
                return broken(0, rank);
            }
        }
        Ok(())
    }

    /// The best next link from each place towards place `to`, by a backward Dijkstra search over (hops, latency).
    fn way_to(&self, to: u32) -> Box<[u32]> {
        let far = (u32::MAX, u64::MAX, NOWHERE);
        let mut best = vec![far; self.into.len()];
        best[to as usize] = (0, 0, NOWHERE);
        let mut next = BinaryHeap::from([Reverse((0, 0, to))]);
        while let Some(Reverse((hops, latency, place))) = next.pop() {
            if (hops, latency) != (best[place as usize].0, best[place as usize].1) {
                continue;
            }
            for &number in &self.into[place as usize] {
                let edge = &self.edges[number as usize];
                let reached = (hops + 1, latency.saturating_add(edge.link.latency.0), number);
                let known = &mut best[edge.from as usize];
                if reached < *known {
                    let nearer = (reached.0, reached.1) < (known.0, known.1);
                    *known = reached;
                    if nearer {
                        next.push(Reverse((reached.0, reached.1, edge.from)));
                    }
                }
            }
        }
        best.into_iter().map(|(_, _, edge)| edge).collect()
    }

    /// The bandwidth at which data can leave, or enter, the rank with the most bandwidth, and all `ranks` together, in bytes per
    /// second.
    pub(super) fn ports(&self, ranks: u32) -> (u128, u128) {
        let mut ports = vec![[0u128; 2]; self.into.len()];
        for Edge { from, to, link: Link { bandwidth: BytesPerSec(rate), .. } } in &self.edges {
            ports[*from as usize][0] += u128::from(*rate);
            ports[*to as usize][1] += u128::from(*rate);
        }
        let ranks = &ports[..ranks as usize];
        let best = ranks.iter().map(|[out, into]| *out.max(into)).max().unwrap_or(0);
        let all = |way: usize| ranks.iter().map(|port| port[way]).sum::<u128>();
        (best, all(0).max(all(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Picos, Topology};

    fn both(from: u32, to: u32, nanos: u64) -> [Edge; 2] {
        let link = Link { bandwidth: BytesPerSec(1_000_000_000), latency: Picos::from_nanos(nanos) };
        [Edge { from, to, link }, Edge { from: to, to: from, link }]
    }

    fn path(topology: &Topology, from: u32, to: u32) -> Vec<String> {
        let mut path = Vec::new();
        topology.route(Rank(from), Rank(to), &mut path);
        path.iter().map(|link| topology.link_name(*link)).collect()
    }

    #[test]
    fn fewest_hops_then_least_latency_then_lowest_number() {
        // Ranks 0 and 1 are connected through switches a (2), b (3) and c (4); a is slow, b and c are equal.
        let edges =
            [both(0, 2, 9), both(2, 1, 9), both(0, 3, 5), both(3, 1, 5), both(0, 4, 5), both(4, 1, 5)];
        let names = ["a", "b", "c"].map(String::from);
        let topology = Topology::graph(2, &names, edges.concat()).unwrap();
        assert_eq!(path(&topology, 0, 1), ["rank0>b[0]", "b>rank1[0]"]);
        let mut links = Vec::new();
        topology.route(Rank(1), Rank(0), &mut links);
        let latency = links.iter().map(|link| topology.link(*link).latency.0).sum();
        assert_eq!(Picos(latency), Picos::from_nanos(10));
        assert!(path(&topology, 1, 1).is_empty());
        // A direct link is one hop and is therefore taken, however high its latency is.
        let edges = [edges.concat(), both(0, 1, 1_000).to_vec()].concat();
        let direct = Topology::graph(2, &names, edges).unwrap();
        assert_eq!(path(&direct, 0, 1), ["rank0>rank1[0]"]);
        assert_eq!(direct.find_link("b>rank1[0]"), Ok(LinkId(6)));
    }

    #[test]
    fn a_rank_that_cannot_be_reached_is_named() {
        let one_way = both(0, 1, 1)[0].clone();
        let error = Topology::graph(2, &[], vec![one_way]).unwrap_err().to_string();
        assert!(error.contains("from rank 1 to rank 0"), "{error}");
    }

    #[test]
    fn a_ring_drawn_as_a_graph_has_the_ways_of_the_built_in_ring() {
        let link = Link { bandwidth: BytesPerSec(1_000_000_000), latency: Picos(7) };
        let edges = (0..7).flat_map(|r| both(r, (r + 1) % 7, 1)).map(|edge| Edge { link, ..edge }).collect();
        let (drawn, built) = (Topology::graph(7, &[], edges).unwrap(), Topology::ring(7, link).unwrap());
        for (from, to) in (0..7).flat_map(|from| (0..7).map(move |to| (from, to))) {
            let mut hops = Vec::new();
            built.route(Rank(from), Rank(to), &mut hops);
            assert_eq!(path(&drawn, from, to).len(), hops.len());
        }
    }
}
