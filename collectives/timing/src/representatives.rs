//! The ranks that an engine steps: every rank, or one representative of each symmetry class.

use allfold_schedules::schedule::Rank;
use allfold_sim::{Crossing, Faults, Link, LinkId, Picos, Topology};

/// The representatives of a run and the links that they use. Always `representative(rank(a)) == a`.
///
/// With symmetry classes, a message of representative `a` in a round represents one message of every rank of its class. The
/// message's receiver is the representative of the rank that `a` sends to, in the same round. The message's channel is (a, the rank
/// that `a` sends to, lane). The classes are orbits of renumberings that move every rank, so `a` and that rank determine the orbit
/// of the pair.
pub trait Representatives {
    /// The number of representatives.
    fn representatives(&self) -> u32;

    /// The rank that is stepped as this representative.
    fn rank(&self, representative: u32) -> Rank;

    /// The representative of `rank`'s class; `rank` itself if every rank is stepped.
    fn representative(&self, rank: Rank) -> u32;

    /// The number of links, or of classes of links. Every [`Crossing::link`] is below this number or is a gate of a fault rule.
    fn links(&self) -> u32;

    /// The bandwidth and latency of a link, or of each link of a class.
    fn link(&self, link: LinkId) -> Link;

    /// Appends the links that a flow between two ranks crosses, each link once, and returns the latency of the whole path.
    fn route(&self, from: Rank, to: Rank, path: &mut Vec<Crossing>) -> Picos;
}

/// All ranks of a topology, each represented by itself.
pub struct AllRanks<'a> {
    topology: &'a Topology,
    faults: &'a Faults,
}

impl<'a> AllRanks<'a> {
    /// All ranks of a topology, with its links as slow as the steady fault rules make them.
    pub fn of(topology: &'a Topology, faults: &'a Faults) -> AllRanks<'a> {
        AllRanks { topology, faults }
    }
}

impl Representatives for AllRanks<'_> {
    fn representatives(&self) -> u32 {
        self.topology.ranks()
    }
    fn rank(&self, representative: u32) -> Rank {
        Rank(representative)
    }
    fn representative(&self, rank: Rank) -> u32 {
        rank.0
    }
    fn links(&self) -> u32 {
        self.topology.links()
    }
    fn link(&self, link: LinkId) -> Link {
        self.faults.link(link, self.topology.link(link))
    }
    fn route(&self, from: Rank, to: Rank, path: &mut Vec<Crossing>) -> Picos {
        let mut walk = Walk { cast: self, path, latency: Picos::ZERO };
        self.topology.route(from, to, &mut walk);
        let latency = walk.latency;
        let gate = |gate| Crossing { link: LinkId(self.topology.links() + gate), weight: 1 };
        path.extend(self.faults.gates_between(from, to).map(gate));
        latency
    }
}

/// Collects a path's links as crossings, and the sum of their latencies.
struct Walk<'a> {
    cast: &'a AllRanks<'a>,
    path: &'a mut Vec<Crossing>,
    latency: Picos,
}

impl Extend<LinkId> for Walk<'_> {
    fn extend<I: IntoIterator<Item = LinkId>>(&mut self, links: I) {
        for link in links {
            self.path.push(Crossing { link, weight: 1 });
            self.latency += self.cast.link(link).latency;
        }
    }
}

/// The representatives `cast`, with every crossing of a route changed by `change`.
pub(crate) struct Rerouted<'a, C, F> {
    cast: &'a C,
    change: F,
}

impl<'a, C: Representatives, F: Fn(&mut Crossing)> Rerouted<'a, C, F> {
    pub fn new(cast: &'a C, change: F) -> Rerouted<'a, C, F> {
        Rerouted { cast, change }
    }
}

/// The representatives `cast`, where each flow represents `weight` equal flows.
pub(crate) fn replicated<C: Representatives>(cast: &C, weight: u32) -> impl Representatives {
    Rerouted::new(cast, move |crossing| crossing.weight *= weight)
}

impl<C: Representatives, F: Fn(&mut Crossing)> Representatives for Rerouted<'_, C, F> {
    fn representatives(&self) -> u32 {
        self.cast.representatives()
    }
    fn rank(&self, representative: u32) -> Rank {
        self.cast.rank(representative)
    }
    fn representative(&self, rank: Rank) -> u32 {
        self.cast.representative(rank)
    }
    fn links(&self) -> u32 {
        self.cast.links()
    }
    fn link(&self, link: LinkId) -> Link {
        self.cast.link(link)
    }
    fn route(&self, from: Rank, to: Rank, path: &mut Vec<Crossing>) -> Picos {
        let first = path.len();
        let latency = self.cast.route(from, to, path);
        path[first..].iter_mut().for_each(&self.change);
        latency
    }
}
