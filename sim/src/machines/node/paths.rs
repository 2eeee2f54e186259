//! The ways through a node, and how much fits through a cut of it.

use super::{Kind, Node};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A wire in one direction: its number and whether it goes from `b` to `a`.
pub(super) type Way = (u32, bool);

impl Node {
    /// From `from` to every place, the best way: NVLink before PCI Express; fewest wires, the fastest, the first named.
    /// To leave the node, NVLink is not taken.
    pub(super) fn ways(&self, from: u32, leaving: bool) -> Vec<Option<Vec<Way>>> {
        let places = self.devices as usize + self.places.len();
        // A wire costs 1, and one that is not NVLink 3: two NVLinks through another device come before PCI Express.
        let mut out = vec![Vec::new(); places];
        for (number, wire) in self.wires.iter().enumerate() {
            if leaving && wire.kind == Kind::NvLink {
                continue;
            }
            let cost = if wire.kind == Kind::NvLink { 1 } else { 3 };
            // Of equally short ways the faster: slowness in picoseconds a kilobyte breaks ties.
            let slow = (1e6 / wire.gbps.max(1e-3)) as u64;
            for (a, b, back) in [(wire.a, wire.b, false), (wire.b, wire.a, true)] {
                if let Some(list) = out.get_mut(a as usize) {
                    list.push((b, cost, slow, (number as u32, back)));
                }
            }
        }
        let far = (u32::MAX, u64::MAX);
        let mut best = vec![(far, None::<(u32, Way)>); places];
        best[from as usize].0 = (0, 0);
        let mut next = BinaryHeap::from([Reverse((0u32, 0u64, from))]);
        while let Some(Reverse((cost, slow, place))) = next.pop() {
            // Only NVLink leads through a device.
            let through = place != from && place < self.devices;
            if (cost, slow) != best[place as usize].0 {
                continue;
            }
            for &(to, more, slower, way) in &out[place as usize] {
                if through && more > 1 {
                    continue;
                }
                let Some(known) = best.get_mut(to as usize) else { continue };
                let reached = (cost + more, slow.max(slower));
                if reached < known.0 {
                    *known = (reached, Some((place, way)));
                    next.push(Reverse((reached.0, reached.1, to)));
                }
            }
        }
        (0..places)
            .map(|to| {
                let mut way = Vec::new();
                let mut at = to;
                while at != from as usize {
                    let (before, wire) = best[at].1?;
                    way.push(wire);
                    at = before as usize;
                }
                way.reverse();
                Some(way)
            })
            .collect()
    }
}

/// Greatest flow by shortest augmenting paths (J. Edmonds and R. Karp, J. ACM 19, 1972).
pub(super) struct Flow {
    room: Vec<BTreeMap<usize, f64>>,
}

impl Flow {
    pub(super) fn new(places: usize) -> Flow {
        Flow { room: vec![BTreeMap::new(); places] }
    }

    pub(super) fn edge(&mut self, a: usize, b: usize, capacity: f64) {
        *self.room[a].entry(b).or_default() += capacity;
        self.room[b].entry(a).or_default();
    }

    pub(super) fn max(mut self, source: usize, sink: usize) -> f64 {
        let mut total = 0.0;
        loop {
            let mut from = vec![usize::MAX; self.room.len()];
            let mut next = VecDeque::from([source]);
            while let Some(at) = next.pop_front() {
                for (&to, &room) in &self.room[at] {
                    if room > 1e-9 && from[to] == usize::MAX && to != source {
                        from[to] = at;
                        next.push_back(to);
                    }
                }
            }
            if from[sink] == usize::MAX {
                return total;
            }
            let mut path = vec![sink];
            while let Some(&at) = path.last().filter(|at| **at != source) {
                path.push(from[at]);
            }
            let pairs: Vec<(usize, usize)> = path.windows(2).map(|pair| (pair[1], pair[0])).collect();
            let least = pairs.iter().map(|(a, b)| self.room[*a][b]).fold(f64::INFINITY, f64::min);
            if least.is_infinite() {
                return least;
            }
            for (a, b) in pairs {
                *self.room[a].entry(b).or_default() -= least;
                *self.room[b].entry(a).or_default() += least;
            }
            total += least;
        }
    }
}
