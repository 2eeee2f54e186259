//! The renumberings of the ranks that map a topology to itself, in closed form.
//!
//! ```text
//! ring, mesh, switch    every rotation: r becomes r + s
//! nodes of 8            rotations by whole nodes; xor with any mask, where every node is full
//! cluster               rotations by nodes or by pods; xor with masks of whole nodes, or of devices that are alike
//! switch, nodes of 8     blocks of ranks, or of whole nodes, in reverse order
//! graph                 none (not searched for)
//! ```

use super::wiring::Wiring;
use super::{LinkId, Topology};
use crate::Rank;

/// Renumberings of the ranks that map every link to a link of the same family, and every path to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symmetry {
    /// The rotations: r becomes r + s modulo the number of ranks, for every multiple s of this number; `None` if there are none.
    pub rotations: Option<u32>,
    /// The xor masks: r becomes r ^ m, for every multiple m of this number that maps the ranks to the ranks; `None` if there are
    /// none.
    pub masks: Option<u32>,
    /// The mirrors: [`Rank::mirrored`] in blocks of any multiple of this number of ranks that divides the number of ranks; `None` if
    /// there are none or they are not searched for.
    pub mirrors: Option<u32>,
}

impl Topology {
    /// The renumberings of the ranks that map this topology to itself.
    pub fn symmetry(&self) -> Symmetry {
        Symmetry { rotations: self.rotations(), masks: self.masks(), mirrors: self.mirrors() }
    }

    /// Whether there is a link for every ordered pair of ranks: link r of family d leads from rank r to rank r + d + 1,
    /// modulo the number of ranks.
    pub fn joins_pairs(&self) -> bool {
        self.wiring == Wiring::Mesh
    }

    fn rotations(&self) -> Option<u32> {
        let ranks = self.ranks;
        match self.wiring {
            Wiring::Switch | Wiring::Ring | Wiring::Mesh => Some(1),
            Wiring::Nodes { devices, .. } if ranks <= devices => Some(1),
            Wiring::Nodes { devices, .. } if ranks.is_multiple_of(devices) => Some(devices),
            Wiring::Cluster { devices, pod } if ranks.is_multiple_of(devices) => match pod {
                // The devices of a node differ from each other, and so do the nodes of a pod if there are several pods.
                0 => Some(devices),
                pod if ranks <= pod && !self.has_rails() => Some(devices),
                pod if ranks.is_multiple_of(pod) => Some(pod),
                _ => None,
            },
            Wiring::Nodes { .. } | Wiring::Cluster { .. } | Wiring::Graph => None,
        }
    }

    fn masks(&self) -> Option<u32> {
        let ranks = self.ranks;
        match self.wiring {
            Wiring::Switch | Wiring::Mesh => Some(1),
            Wiring::Ring | Wiring::Graph => None,
            Wiring::Nodes { devices, .. } if ranks <= devices => Some(1),
            Wiring::Nodes { devices, nics } => {
                let even = devices.is_power_of_two() && nics.is_power_of_two();
                (ranks.is_multiple_of(devices) && even).then_some(1)
            }
            Wiring::Cluster { devices, pod } => {
                let within = ranks <= pod && !self.has_rails();
                let whole_pods = pod == 0 || within || (ranks.is_multiple_of(pod) && pod.is_power_of_two());
                // Unless a switch makes the devices of a node interchangeable, each keeps its position in the node, and only whole
                // nodes are renumbered.
                let even = self.cluster.as_ref().is_some_and(|cluster| cluster.is_even(&self.families));
                let unit = if even { 1 } else { devices };
                (ranks.is_multiple_of(devices) && devices.is_power_of_two() && whole_pods).then_some(unit)
            }
        }
    }

    fn mirrors(&self) -> Option<u32> {
        match self.wiring {
            Wiring::Switch => Some(1),
            Wiring::Nodes { devices, .. } if self.ranks > devices && self.ranks.is_multiple_of(devices) => {
                Some(devices)
            }
            _ => None,
        }
    }

    /// The link that serves the [`Rank::mirrored`] ranks of those that `link` serves. `block` is one of [`Symmetry::mirrors`].
    pub fn mirrored_link(&self, link: LinkId, block: u32) -> LinkId {
        let family = self.family(link);
        let index = Rank(link.0 - family.first).mirrored(block / family.block, family.count);
        LinkId(family.first + index.0)
    }

    fn has_rails(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.has_rails())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symmetry(name: &str, ranks: u32) -> (Option<u32>, Option<u32>) {
        let Symmetry { rotations, masks, .. } = Topology::named(name, ranks).unwrap().symmetry();
        (rotations, masks)
    }

    #[test]
    fn shapes_have_the_renumberings_of_their_full_nodes_and_pods() {
        assert_eq!(symmetry("switch", 12), (Some(1), Some(1)));
        assert_eq!(symmetry("mesh", 5), (Some(1), Some(1)));
        assert_eq!(symmetry("ring", 8), (Some(1), None));
        assert_eq!(symmetry("nodes8", 64), (Some(8), Some(1)));
        assert_eq!(symmetry("nodes8", 6), (Some(1), Some(1)), "one node is a switch");
        assert_eq!(symmetry("nodes8", 63), (None, None), "a node that is not full");
        assert_eq!(symmetry("nodes6", 12), (Some(6), None), "six is no power of two");
        let (rotations, masks) = symmetry("dgx1-v100", 32);
        assert_eq!((rotations, masks), (Some(8), Some(8)), "devices of a hypercube mesh are no two alike");
    }

    #[test]
    fn a_mirror_maps_every_path_to_a_path() {
        for (name, ranks, blocks) in
            [("switch", 12, &[1u32, 3, 6][..]), ("nodes4", 24, &[4, 8, 12]), ("nodes6x3", 24, &[6, 12])]
        {
            let topology = Topology::named(name, ranks).unwrap();
            let unit = topology.symmetry().mirrors.unwrap();
            for &block in blocks {
                assert!(block.is_multiple_of(unit));
                let mirrored = |rank: u32| Rank(rank).mirrored(block, ranks);
                for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
                    let (mut links, mut image) = (Vec::new(), Vec::new());
                    topology.route(Rank(from), Rank(to), &mut links);
                    topology.route(mirrored(from), mirrored(to), &mut image);
                    links.iter_mut().for_each(|link| *link = topology.mirrored_link(*link, block));
                    assert_eq!(links, image, "{name}, blocks of {block}, {from} to {to}");
                }
            }
        }
        let none = |name, ranks| Topology::named(name, ranks).unwrap().symmetry().mirrors;
        assert_eq!(
            [none("ring", 8), none("nodes8", 63), none("nodes8", 8), none("dgx1-v100", 32)],
            [None; 4]
        );
    }
}
