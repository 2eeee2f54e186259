//! Who is stepped: every rank, or one representative of each symmetry class.

use allfold_schedules::schedule::Rank;
use allfold_sim::{Crossing, Faults, Link, LinkId, Picos, Topology};

/// The representatives of a run and the links they see. `representative(rank(a)) == a`.
///
/// On a quotient, a message of representative `a` in a round stands for one message of every rank of its class. Its receiver
/// is the representative of the rank it names, in the same round. Its channel is (a, the rank it names, lane): classes are
/// orbits of renumberings that move every rank, so the representative and the rank it names fix the orbit of the pair.
pub trait Representatives {
    /// How many representatives.
    fn representatives(&self) -> u32;

    /// The rank that a representative plays.
    fn rank(&self, representative: u32) -> Rank;

    /// The representative that plays a rank, or stands for it.
    fn representative(&self, rank: Rank) -> u32;

    /// How many links, or classes of links; [`Crossing::link`] lies below this, or is a gate of a fault rule.
    fn links(&self) -> u32;

    /// What a link, or each link of a class, can do.
    fn link(&self, link: LinkId) -> Link;

    /// Appends what a flow between two ranks crosses, each link once, and gives the latency of the whole path.
    fn route(&self, from: Rank, to: Rank, path: &mut Vec<Crossing>) -> Picos;
}

/// Every rank plays itself.
pub struct AllRanks<'a> {
    topology: &'a Topology,
    faults: &'a Faults,
}

impl<'a> AllRanks<'a> {
    /// All ranks of a topology, some of its links slower than they should be.
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

/// Collects a path's links as crossings, and their latency.
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

/// These representatives, with each flow standing for several equal flows.
pub(crate) struct Replicated<'a, C> {
    pub cast: &'a C,
    pub weight: u32,
}

impl<C: Representatives> Representatives for Replicated<'_, C> {
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
        path[first..].iter_mut().for_each(|crossing| crossing.weight *= self.weight);
        latency
    }
}
