//! The properties of a network that a strategy uses: the phases of a step, which parameters each layer reads, and where layers can be
//! cut.

use super::{Network, Phase};
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use std::ops::Range;

/// A network's structure without its element type.
#[derive(Clone, Debug)]
pub struct Outline {
    names: Vec<String>,
    forward: Vec<Phase>,
    backward: Vec<Phase>,
    /// For each layer: the elements of its parameters among all parameters; of a tied layer, its owner's.
    values: Vec<Range<usize>>,
    /// For each layer: the layer that its parameters belong to.
    owners: Vec<usize>,
    /// For each layer: whether its weight gradient can be computed after its input gradient.
    deferrable: Vec<bool>,
    /// For each layer: operations of a step over one sample.
    costs: Vec<u64>,
    /// For each layer: whether it has a weight gradient.
    weight_grads: Vec<bool>,
    /// For each layer: whether its parameters are those of some experts.
    some_experts: Vec<bool>,
    cuts: Vec<usize>,
    trained: Vec<Range<usize>>,
    /// For each activation: whether the backward pass computes a gradient with respect to it.
    gradients: Vec<bool>,
}

/// The layer that a phase belongs to; `None` for the loss and for a gradient that becomes ready.
pub fn layer_of(phase: Phase) -> Option<usize> {
    match phase {
        Phase::SyncForward(l)
        | Phase::Forward(l)
        | Phase::WeightGrad(l)
        | Phase::SyncBackward(l)
        | Phase::InputGrad(l)
        | Phase::Recompute(l) => Some(l),
        Phase::Loss | Phase::Ready(_) => None,
    }
}

impl<F: Float> Network<F> {
    /// The network's structure.
    pub fn outline(&self) -> Outline {
        let layers = self.layers.len();
        let owner = |l: usize| {
            let owns =
                |other: &usize| !self.spans[*other].tied && self.spans[*other].params == self.spans[l].params;
            if self.spans[l].tied { (0..layers).find(owns).unwrap_or(l) } else { l }
        };
        Outline {
            names: self.names.clone(),
            forward: self.forward_phases(),
            backward: self.backward_phases(),
            values: self.spans.iter().map(|spans| spans.values.clone()).collect(),
            owners: (0..layers).map(owner).collect(),
            deferrable: self
                .layers
                .iter()
                .map(|l| !l.traits().needs_gradients && !l.traits().uses_up_saved && l.sync_len().1 == 0)
                .collect(),
            costs: self.layer_costs(),
            weight_grads: {
                let phases = self.backward_phases();
                (0..layers).map(|l| phases.contains(&Phase::WeightGrad(l))).collect()
            },
            some_experts: self.layers.iter().map(|layer| layer.traits().has_some_experts).collect(),
            cuts: (1..layers).filter(|&cut| self.is_cut(cut) && !self.is_inside_recomputed(cut)).collect(),
            trained: self.trained_values(),
            gradients: self.trained(),
        }
    }

    /// For each layer: operations of a step over one sample. Ranks that share a network count the operations of the whole, so that all
    /// of them cut the network at the same layers.
    pub(super) fn layer_costs(&self) -> Vec<u64> {
        if let Some(costs) = &self.costs {
            return costs.clone();
        }
        let mut costs = vec![0u64; self.layers.len()];
        for phase in self.forward_phases().into_iter().chain(self.backward_phases()) {
            if let Some(l) = layer_of(phase) {
                costs[l] = costs[l].saturating_add(self.cost(phase, 1).flops);
            }
        }
        costs
    }

    /// Whether activation `cut` is all that the layers from `cut` on read of the layers before.
    pub(super) fn is_cut(&self, cut: usize) -> bool {
        self.from[cut..].iter().flatten().all(|&from| from >= cut)
    }

    /// The elements of trained parameters that the loss depends on, in order; neighbours are one range.
    fn trained_values(&self) -> Vec<Range<usize>> {
        let unreached = self.unreached();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for (param, place) in self.params.iter().enumerate() {
            if self.frozen[param] || unreached.contains(&param) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == place.range.start => last.end = place.range.end,
                _ => ranges.push(place.range.clone()),
            }
        }
        ranges
    }
}

impl Outline {
    /// Layers in a row, each with these elements among all parameters, all of them trained. `forward` and `backward` are the phases of
    /// a step, and `costs` the operations of each layer in a step over one sample.
    pub fn in_a_row(
        names: Vec<String>,
        (forward, backward): (Vec<Phase>, Vec<Phase>),
        values: Vec<Range<usize>>,
        costs: Vec<u64>,
    ) -> Outline {
        let layers = names.len();
        let end = values.iter().map(|values| values.end).max().unwrap_or_default();
        let weight_grads = (0..layers).map(|l| backward.contains(&Phase::WeightGrad(l))).collect();
        Outline {
            names,
            forward,
            backward,
            values,
            owners: (0..layers).collect(),
            deferrable: vec![true; layers],
            costs,
            weight_grads,
            some_experts: vec![false; layers],
            cuts: (1..layers).collect(),
            trained: std::iter::once(0..end).collect(),
            gradients: (0..=layers).map(|act| act > 0).collect(),
        }
    }

    /// The number of layers.
    pub fn layers(&self) -> usize {
        self.names.len()
    }

    /// The names of the layers, first to last.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The phases of a forward pass through these layers.
    pub fn forward(&self, layers: &Range<usize>) -> Vec<Phase> {
        self.forward
            .iter()
            .copied()
            .filter(|phase| layer_of(*phase).is_some_and(|l| layers.contains(&l)))
            .collect()
    }

    /// The phases of a backward pass through these layers: with all weight gradients, or only with those that must come before
    /// the layer's input gradient.
    pub fn backward(&self, layers: &Range<usize>, weights: bool) -> Vec<Phase> {
        let own = |phase: Phase| match layer_of(phase) {
            Some(l) if matches!(phase, Phase::WeightGrad(_)) => {
                layers.contains(&l) && (weights || !self.deferrable[l])
            }
            Some(l) => layers.contains(&l),
            None => phase == Phase::Loss && layers.end == self.layers(),
        };
        self.backward.iter().copied().filter(|phase| own(*phase)).collect()
    }

    /// The phases of a backward pass through the whole network, with each parameter announced when its gradient is final.
    pub fn announced(&self) -> &[Phase] {
        &self.backward
    }

    /// The weight gradients of these layers that [`Outline::backward`] leaves out where `weights` is false.
    pub fn deferred(&self, layers: &Range<usize>) -> Vec<Phase> {
        let late = |phase: &Phase| matches!(*phase, Phase::WeightGrad(l) if layers.contains(&l) && self.deferrable[l]);
        self.backward.iter().copied().filter(late).collect()
    }

    /// For each layer: whether it has a weight gradient.
    pub fn weight_grads(&self) -> &[bool] {
        &self.weight_grads
    }

    /// The range of a layer's parameters among all parameters; for a tied layer, the range of its owner.
    pub fn values_of(&self, layer: usize) -> Range<usize> {
        self.values[layer].clone()
    }

    /// The layer that a layer's parameters belong to: itself, unless they are tied.
    pub fn owner(&self, layer: usize) -> usize {
        self.owners[layer]
    }

    /// The elements of these layers' own parameters among all parameters.
    pub fn values_in(&self, layers: &Range<usize>) -> Range<usize> {
        let own = || layers.clone().filter(|&l| self.owners[l] == l && !self.values[l].is_empty());
        match (own().next(), own().next_back()) {
            (Some(first), Some(last)) => self.values[first].start..self.values[last].end,
            _ => 0..0,
        }
    }

    /// The elements of all trained parameters that the loss depends on, in order.
    pub fn trained(&self) -> &[Range<usize>] {
        &self.trained
    }

    /// Whether some of these elements of the parameters are trained, and the loss depends on them.
    pub fn trains_some_of(&self, values: &Range<usize>) -> bool {
        self.trained.iter().any(|range| range.start < values.end && values.start < range.end)
    }

    /// Whether the backward pass computes a gradient with respect to an activation; not if the activation depends on no trained
    /// parameter.
    pub fn has_gradient(&self, act: usize) -> bool {
        self.gradients[act]
    }

    /// Every boundary that only one activation crosses, given by the number of the first layer after the boundary.
    pub fn cuts(&self) -> &[usize] {
        &self.cuts
    }

    /// Whether any of these layers has some experts, whose copies are on other ranks than the copies of other parameters.
    pub fn has_some_experts(&self, layers: &Range<usize>) -> bool {
        layers.clone().any(|l| self.some_experts[l])
    }

    /// These layers in blocks, each with parameters of its own if the layers have any. Blocks end at cuts, and between layers with
    /// some experts and other layers with parameters.
    pub fn blocks(&self, layers: &Range<usize>) -> Vec<Range<usize>> {
        let mut blocks: Vec<Range<usize>> = Vec::new();
        let mut start = layers.start;
        let own = layers.clone().filter(|&l| self.owners[l] == l && !self.values[l].is_empty());
        let own: Vec<usize> = own.collect();
        let changes = own.windows(2).filter(|two| self.some_experts[two[0]] != self.some_experts[two[1]]);
        let mut inside: Vec<usize> = self.cuts.iter().copied().chain(changes.map(|two| two[1])).collect();
        inside.sort_unstable();
        inside.dedup();
        inside.retain(|cut| layers.start < *cut && *cut < layers.end);
        for cut in inside.into_iter().chain([layers.end]) {
            if !self.values_in(&(start..cut)).is_empty() {
                blocks.push(start..cut);
                start = cut;
            }
        }
        match blocks.last_mut() {
            Some(last) => last.end = layers.end,
            None => blocks.push(layers.clone()),
        }
        blocks
    }

    /// Cuts the layers into `chunks` chunks at places where one activation crosses, such that the costliest chunk costs as
    /// little as possible.
    ///
    /// # Errors
    /// More chunks than the network can be cut into.
    pub fn chunks(&self, chunks: usize) -> Result<Vec<Range<usize>>> {
        let edges: Vec<usize> =
            [0].into_iter().chain(self.cuts.iter().copied()).chain([self.layers()]).collect();
        let pieces = edges.len() - 1;
        if chunks == 0 || chunks > pieces {
            return Err(Error::Config(format!(
                "the network has {pieces} parts that a pipeline can separate, and {chunks} chunks are wanted; use 1 to {pieces}"
            )));
        }
        // The costs of the layers before each edge.
        let before_edge = |edge: &usize| self.costs[..*edge].iter().map(|cost| u128::from(*cost)).sum();
        let sums: Vec<u128> = edges.iter().map(before_edge).collect();
        let cost = |from: usize, to: usize| sums[to] - sums[from];
        // best[k][end]: the least possible cost of the costliest of k + 1 chunks over the first `end` pieces, and where the last begins.
        let mut best: Vec<Vec<(u128, usize)>> = vec![(0..=pieces).map(|end| (cost(0, end), 0)).collect()];
        for k in 1..chunks {
            let before = &best[k - 1];
            let row = (0..=pieces).map(|end| {
                let options = (k..end).map(|from| (before[from].0.max(cost(from, end)), from));
                options.min().unwrap_or((u128::MAX, 0))
            });
            let row = row.collect();
            best.push(row);
        }
        let mut ranges = Vec::with_capacity(chunks);
        let mut end = pieces;
        for row in best.iter().rev() {
            let start = row[end].1;
            ranges.push(edges[start]..edges[end]);
            end = start;
        }
        ranges.reverse();
        Ok(ranges)
    }

    /// The layers in chunks: the first begins at the first layer, the others at the layers of these names.
    ///
    /// # Errors
    /// A name that no layer has, names out of order, or a layer before which the network cannot be cut.
    pub fn chunks_from(&self, firsts: &[String]) -> Result<Vec<Range<usize>>> {
        let mut edges = vec![0];
        for name in firsts {
            let Some(at) = self.names.iter().position(|layer| layer == name) else {
                return Err(crate::error::unknown_layer("layer", name, &self.names));
            };
            if at <= edges[edges.len() - 1] || !self.cuts.contains(&at) {
                let cuts =
                    self.cuts.iter().map(|&cut| self.names[cut].as_str()).collect::<Vec<_>>().join(", ");
                return Err(Error::Config(format!(
                    "a chunk cannot begin at layer `{name}`; chunks begin, in order, at some of: {cuts}"
                )));
            }
            edges.push(at);
        }
        edges.push(self.layers());
        Ok(edges.windows(2).map(|edge| edge[0]..edge[1]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Gpt, ResNet, gpt, resnet};

    fn outline(model: &str, classes: usize) -> Outline {
        let dropped = (0.0, 0.0);
        let parts = Gpt {
            vocabulary: classes,
            positions: 32,
            layers: 4,
            width: 64,
            heads: 4,
            dropout: dropped.0,
            attention_dropout: dropped.1,
            tied: true,
        };
        let pictures = ResNet { layers: 18, imagenet_stem: false, shape: (3, 32, 32), classes };
        let network = if model == "gpt" { gpt::<f32>(&parts) } else { resnet(&pictures) };
        network.unwrap().outline()
    }

    #[test]
    fn networks_are_cut_between_residual_blocks_and_nowhere_inside() {
        let gpt = outline("gpt", 65);
        let cuts: Vec<&str> = gpt.cuts().iter().map(|&cut| gpt.names()[cut].as_str()).collect();
        assert!(cuts.contains(&"transformer.h.1.ln_1") && cuts.contains(&"transformer.h.1.ln_2"));
        assert!(!cuts.contains(&"transformer.h.1.attn.c_attn") && cuts.contains(&"lm_head"));
        // The head's weight belongs to the embedding.
        assert_eq!((gpt.owner(gpt.layers() - 1), gpt.values_of(gpt.layers() - 1)), (0, gpt.values_of(0)));
        let resnet = outline("resnet18", 10);
        let blocks = resnet.blocks(&(0..resnet.layers()));
        assert_eq!((blocks[0].start, blocks[blocks.len() - 1].end), (0, resnet.layers()));
        assert!(blocks.windows(2).all(|two| two[0].end == two[1].start));
    }

    #[test]
    fn chunks_are_balanced_and_cover_every_layer() {
        let gpt = outline("gpt", 65);
        for chunks in 1..=8 {
            let ranges = gpt.chunks(chunks).unwrap();
            assert_eq!((ranges.len(), ranges[0].start, ranges[chunks - 1].end), (chunks, 0, gpt.layers()));
            assert!(ranges.iter().all(|range| !range.is_empty()));
            assert!(
                ranges.windows(2).all(|two| two[0].end == two[1].start && gpt.cuts().contains(&two[1].start))
            );
        }
        // Four blocks of equal cost: two in each half.
        let half = gpt.chunks(2).unwrap()[1].start;
        assert!(gpt.names()[half].starts_with("transformer.h.2.ln"), "{}", gpt.names()[half]);
        let error = gpt.chunks(1000).unwrap_err().to_string();
        assert!(error.contains("1000 chunks are wanted"), "{error}");
        let by_hand = gpt.chunks_from(&["transformer.h.1.ln_1".into()]).unwrap();
        assert_eq!(by_hand.len(), 2);
        assert!(gpt.chunks_from(&["transformer.h.1.attn".into()]).is_err());
    }

    #[test]
    fn deferred_weight_gradients_and_the_rest_make_a_whole_pass() {
        for (model, classes) in [("gpt", 65), ("resnet18", 10)] {
            let outline = outline(model, classes);
            let all = 0..outline.layers();
            let mut whole = outline.backward(&all, true);
            let mut parts = [outline.backward(&all, false), outline.deferred(&all)].concat();
            let key = |phase: &Phase| format!("{phase:?}");
            whole.sort_by_key(key);
            parts.sort_by_key(key);
            assert_eq!(whole, parts);
        }
    }
}
