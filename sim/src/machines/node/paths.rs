//! Paths between the places of a node.

use super::{LinkKind, Node};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A link in one direction: its number, and whether it is taken from `b` to `a`.
pub(super) type DirectedLink = (u32, bool);

impl Node {
    /// The best path from `from` to every place: NVLink before PCI Express, then the fewest links, the fastest, and the first in
    /// order. A path that leaves the node (`leaving`) uses no NVLink.
    pub(super) fn paths(&self, from: u32, leaving: bool) -> Vec<Option<Vec<DirectedLink>>> {
        let places = self.devices as usize + self.places.len();
        // An NVLink costs 1 and any other link 3, so that two NVLinks through another device are preferred to PCI Express.
        let mut out = vec![Vec::new(); places];
        for (number, wire) in self.links.iter().enumerate() {
            if leaving && wire.kind == LinkKind::NvLink {
                continue;
            }
            let cost = if wire.kind == LinkKind::NvLink { 1 } else { 3 };
            // Of equally short paths the faster one is taken: picoseconds per kilobyte break ties.
            let slow = (1e6 / wire.gb_per_s.max(1e-3)) as u64;
            for (a, b, back) in [(wire.a, wire.b, false), (wire.b, wire.a, true)] {
                if let Some(list) = out.get_mut(a as usize) {
                    list.push((b, cost, slow, (number as u32, back)));
                }
            }
        }
        let far = (u32::MAX, u64::MAX);
        let mut best = vec![(far, None::<(u32, DirectedLink)>); places];
        best[from as usize].0 = (0, 0);
        let mut next = BinaryHeap::from([Reverse((0u32, 0u64, from))]);
        while let Some(Reverse((cost, slow, place))) = next.pop() {
            // A path leads through a device only by NVLink.
            let through = place != from && place < self.devices;
            if (cost, slow) != best[place as usize].0 {
                continue;
            }
            for &(to, more, slower, link) in &out[place as usize] {
                if through && more > 1 {
                    continue;
                }
                let Some(known) = best.get_mut(to as usize) else { continue };
                let reached = (cost + more, slow.max(slower));
                if reached < known.0 {
                    *known = (reached, Some((place, link)));
                    next.push(Reverse((reached.0, reached.1, to)));
                }
            }
        }
        (0..places)
            .map(|to| {
                let mut path = Vec::new();
                let mut at = to;
                while at != from as usize {
                    let (before, wire) = best[at].1?;
                    path.push(wire);
                    at = before as usize;
                }
                path.reverse();
                Some(path)
            })
            .collect()
    }
}
