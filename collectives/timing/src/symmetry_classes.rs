//! Links and paths for one representative per symmetry class, where a link represents its class.
//!
//! ```text
//! ring on nodes of 8:   0 -> 1 -> ... -> 7 -> (8 = class 0)     8 representatives, whatever the number of nodes
//! ```
//!
//! A link serves a block of consecutive ranks, so a class of links is an orbit of blocks. The flows into which the renumberings map
//! one flow cross all links of a class equally often. Their number on each link is the number of renumberings that map the link's
//! block to itself, times the number of links of the class on the path.

use super::Representatives;
use super::classes::Classes;
use allfold_schedules::schedule::Rank;
use allfold_sim::{Crossing, Link, LinkId, Picos, Topology};

/// The classes of the links of one family.
struct FamilyClasses {
    /// The number of the family's first class.
    first: u32,
    classes: Classes,
    /// The number of an orbit's flows that cross one link, for each time that the path crosses the class.
    weight: u32,
}

/// The topology as one representative per class of ranks sees it.
pub(crate) struct SymmetryClasses<'a> {
    topology: &'a Topology,
    ranks: Classes,
    /// The classes of each family of links; empty for a mesh, whose links are pairs of ranks.
    families: Vec<FamilyClasses>,
}

impl<'a> SymmetryClasses<'a> {
    /// The topology with `ranks` as classes, which must be orbits of renumberings that map the topology to itself.
    pub fn new(topology: &'a Topology, ranks: Classes) -> SymmetryClasses<'a> {
        let mut symmetry_classes = SymmetryClasses { topology, ranks, families: Vec::new() };
        if !topology.joins_pairs() {
            for family in topology.families() {
                // A renumbering may divide a block only within a single node, where no path uses NICs.
                let unused = || (Classes::Rotations { ranks: 1, step: 1 }, 1);
                let (classes, weight) = symmetry_classes.ranks.of_blocks(family.block).unwrap_or_else(unused);
                let first =
                    symmetry_classes.families.last().map_or(0, |last| last.first + last.classes.count());
                symmetry_classes.families.push(FamilyClasses { first, classes, weight });
            }
        }
        symmetry_classes
    }

    /// The class of a link, and the number of an orbit's flows that cross the link for each time that their path does.
    fn class(&self, link: LinkId) -> Crossing {
        let families = self.topology.families();
        let at = families.partition_point(|family| family.first <= link.0) - 1;
        let owner = link.0 - families[at].first;
        match self.families.get(at) {
            Some(family) => {
                let class = family.first + family.classes.class(owner);
                Crossing { link: LinkId(class), weight: family.weight }
            }
            // In a mesh, a link's class is the orbit of its pair of ranks.
            None => {
                let n = self.topology.ranks();
                let other = self.ranks.carry(owner, (owner + at as u32 + 1) % n);
                Crossing { link: LinkId(self.ranks.class(owner) * n + other), weight: 1 }
            }
        }
    }
}

impl Representatives for SymmetryClasses<'_> {
    fn representatives(&self) -> u32 {
        self.ranks.count()
    }
    fn rank(&self, representative: u32) -> Rank {
        Rank(self.ranks.representative(representative))
    }
    fn representative(&self, rank: Rank) -> u32 {
        self.ranks.class(rank.0)
    }
    fn links(&self) -> u32 {
        match self.families.last() {
            Some(last) => last.first + last.classes.count(),
            None if self.topology.families().is_empty() => 0,
            None => self.ranks.count() * self.topology.ranks(),
        }
    }
    fn link(&self, LinkId(class): LinkId) -> Link {
        let at = self.families.partition_point(|family| family.first <= class);
        self.topology.families()[at.saturating_sub(1)].link
    }
    fn route(&self, from: Rank, to: Rank, path: &mut Vec<Crossing>) -> Picos {
        let mut walk = Walk { symmetry_classes: self, path, latency: Picos::ZERO };
        self.topology.route(from, to, &mut walk);
        walk.latency
    }
}

/// Collects the classes of a path's links, each class once, and the latency of every link.
struct Walk<'a, 'b> {
    symmetry_classes: &'a SymmetryClasses<'b>,
    path: &'a mut Vec<Crossing>,
    latency: Picos,
}

impl Extend<LinkId> for Walk<'_, '_> {
    fn extend<I: IntoIterator<Item = LinkId>>(&mut self, links: I) {
        for link in links {
            self.latency += self.symmetry_classes.topology.link(link).latency;
            let class = self.symmetry_classes.class(link);
            match self.path.iter_mut().find(|crossing| crossing.link == class.link) {
                Some(crossing) => crossing.weight += class.weight,
                None => self.path.push(class),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes::Basis;
    use super::super::classes::test_support::{group, ranks};
    use super::*;
    use allfold_sim::BytesPerSec;
    use proptest::prelude::*;

    const DEVICE_LINK: Link = Link { bandwidth: BytesPerSec(300_000_000_000), latency: Picos(600_000) };
    const NIC_LINK: Link = Link { bandwidth: BytesPerSec(25_000_000_000), latency: Picos(2_700_000) };

    /// Generates a topology and classes of renumberings that map it to itself.
    fn any_pair() -> impl Strategy<Value = (Topology, Classes)> {
        let masks = || prop::collection::vec(0u32..32, 0..5);
        let basis = |masks: Vec<u32>| Classes::Masks { ranks: 32, basis: Basis::spanned_by(masks) };
        let nodes = |nics| Topology::nodes(32, 8, nics, DEVICE_LINK, NIC_LINK).unwrap();
        let rotations = |step| Classes::Rotations { ranks: 32, step };
        prop_oneof![
            (prop_oneof![Just(1u32), Just(2), Just(4), Just(8)], masks())
                .prop_map(move |(nics, masks)| (nodes(nics), basis(masks))),
            (prop_oneof![Just(1u32), Just(2), Just(4), Just(8)], 3u32..5)
                .prop_map(move |(nics, log)| (nodes(nics), rotations(1 << log))),
            (0u32..5).prop_map(move |log| (Topology::ring(32, DEVICE_LINK).unwrap(), rotations(1 << log))),
            (0u32..5).prop_map(move |log| (Topology::mesh(32, DEVICE_LINK).unwrap(), rotations(1 << log))),
            masks().prop_map(move |masks| (Topology::mesh(32, DEVICE_LINK).unwrap(), basis(masks))),
            masks().prop_map(move |masks| (Topology::switch(32, DEVICE_LINK).unwrap(), basis(masks))),
        ]
    }

    proptest! {
        /// Applies all renumberings to one flow and counts the flows on each link.
        #[test]
        fn a_class_is_crossed_as_often_as_each_of_its_links(
            (topology, classes) in any_pair(), representative in 0u32..32, to in 0u32..32,
        ) {
            prop_assert_eq!(ranks(&classes), 32);
            let symmetry_classes = SymmetryClasses::new(&topology, classes.clone());
            let from = symmetry_classes.rank(representative % symmetry_classes.representatives());
            let mut path = Vec::new();
            let latency = symmetry_classes.route(from, Rank(to), &mut path);
            let mut crossed = vec![0u32; topology.links() as usize];
            for g in group(&classes) {
                let mut links = Vec::new();
                topology.route(Rank(g(from.0)), Rank(g(to)), &mut links);
                prop_assert_eq!(latency.0, links.iter().map(|l| topology.link(*l).latency.0).sum::<u64>());
                links.iter().for_each(|link| crossed[link.0 as usize] += 1);
            }
            for (link, crossed) in (0..).map(LinkId).zip(crossed) {
                let class = symmetry_classes.class(link).link;
                let weight = path.iter().find(|crossing| crossing.link == class).map_or(0, |c| c.weight);
                prop_assert_eq!(crossed, weight);
                prop_assert!(class.0 < symmetry_classes.links());
                prop_assert_eq!(symmetry_classes.link(class), topology.link(link));
            }
        }
    }
}
