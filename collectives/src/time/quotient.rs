//! One representative per symmetry class on links that stand for their classes.
//!
//! ```text
//! ring on nodes of 8:   0 -> 1 -> ... -> 7 -> (8 = class 0)     8 actors, whatever the number of nodes
//! ```
//!
//! A link serves a block of consecutive ranks, so a class of links is an orbit of blocks. The flows that a
//! renumbering makes of one flow cross all links of a class equally often, and one of them as often as there
//! are renumberings that map the link's block to itself, times how many links of the class the path has.

use super::Cast;
use super::classes::Classes;
use crate::schedule::Rank;
use allfold_sim::topology::Wiring;
use allfold_sim::{Crossing, Link, LinkId, Picos, Topology};

/// The classes of one family of links.
struct FamilyClasses {
    /// Number of the first class.
    first: u32,
    classes: Classes,
    /// How many flows of an orbit cross one link, for each time that the path crosses the class.
    weight: u32,
}

/// The topology seen by one representative per class of ranks.
pub(crate) struct Quotient<'a> {
    topology: &'a Topology,
    ranks: Classes,
    /// By family; empty for a mesh, whose links are pairs of ranks.
    families: Vec<FamilyClasses>,
}

impl<'a> Quotient<'a> {
    /// `ranks` must be orbits of renumberings that the topology's wiring has.
    pub fn new(topology: &'a Topology, ranks: Classes) -> Quotient<'a> {
        let mut quotient = Quotient { topology, ranks, families: Vec::new() };
        if topology.wiring() != Wiring::Mesh {
            for family in topology.families() {
                // A block may be torn apart only within a single node, where nothing crosses the NICs.
                let unused = || (Classes::Rotations { ranks: 1, step: 1 }, 1);
                let (classes, weight) = quotient.ranks.of_blocks(family.block).unwrap_or_else(unused);
                let first = quotient.families.last().map_or(0, |last| last.first + last.classes.count());
                quotient.families.push(FamilyClasses { first, classes, weight });
            }
        }
        quotient
    }
}

impl Cast for Quotient<'_> {
    fn actors(&self) -> u32 {
        self.ranks.count()
    }
    fn rank(&self, actor: u32) -> Rank {
        Rank(self.ranks.representative(actor))
    }
    fn actor(&self, rank: Rank) -> u32 {
        self.ranks.class(rank.0)
    }
    fn links(&self) -> u32 {
        match self.families.last() {
            Some(last) => last.first + last.classes.count(),
            None => self.ranks.count() * self.topology.ranks(),
        }
    }
    fn link(&self, LinkId(class): LinkId) -> Link {
        let at = self.families.partition_point(|family| family.first <= class);
        self.topology.families()[at.saturating_sub(1)].link
    }
    fn route(&self, from: Rank, to: Rank, path: &mut Vec<Crossing>) -> Picos {
        if self.families.is_empty() && from != to {
            let class = self.ranks.class(from.0) * self.topology.ranks() + self.ranks.carry(from.0, to.0);
            path.push(Crossing { link: LinkId(class), weight: 1 });
            return self.topology.families()[0].link.latency;
        }
        let mut walk = Walk { quotient: self, path, latency: Picos::ZERO };
        self.topology.route(from, to, &mut walk);
        walk.latency
    }
}

/// Collects the classes of a path's links, each class once, and the latency of every link.
struct Walk<'a, 'b> {
    quotient: &'a Quotient<'b>,
    path: &'a mut Vec<Crossing>,
    latency: Picos,
}

impl Extend<LinkId> for Walk<'_, '_> {
    fn extend<I: IntoIterator<Item = LinkId>>(&mut self, links: I) {
        let families = self.quotient.topology.families();
        for link in links {
            let at = families.partition_point(|family| family.first <= link.0) - 1;
            let classes = &self.quotient.families[at];
            let class = LinkId(classes.first + classes.classes.class(link.0 - families[at].first));
            self.latency += families[at].link.latency;
            match self.path.iter_mut().find(|crossing| crossing.link == class) {
                Some(crossing) => crossing.weight += classes.weight,
                None => self.path.push(Crossing { link: class, weight: classes.weight }),
            }
        }
    }
}
