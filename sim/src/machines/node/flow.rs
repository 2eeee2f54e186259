//! The bandwidth between two sets of a node's devices, as a maximum flow.

use std::collections::{BTreeMap, VecDeque};

/// Maximum flow by shortest augmenting paths (J. Edmonds and R. Karp, J. ACM 19, 1972).
pub(super) struct Flow {
    residual: Vec<BTreeMap<usize, f64>>,
}

impl Flow {
    pub(super) fn new(places: usize) -> Flow {
        Flow { residual: vec![BTreeMap::new(); places] }
    }

    pub(super) fn edge(&mut self, a: usize, b: usize, capacity: f64) {
        *self.residual[a].entry(b).or_default() += capacity;
        self.residual[b].entry(a).or_default();
    }

    pub(super) fn max(mut self, source: usize, sink: usize) -> f64 {
        let mut total = 0.0;
        loop {
            let mut from = vec![usize::MAX; self.residual.len()];
            let mut next = VecDeque::from([source]);
            while let Some(at) = next.pop_front() {
                for (&to, &residual) in &self.residual[at] {
                    if residual > 1e-9 && from[to] == usize::MAX && to != source {
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
            let least = pairs.iter().map(|(a, b)| self.residual[*a][b]).fold(f64::INFINITY, f64::min);
            if least.is_infinite() {
                return least;
            }
            for (a, b) in pairs {
                *self.residual[a].entry(b).or_default() -= least;
                *self.residual[b].entry(a).or_default() += least;
            }
            total += least;
        }
    }
}
