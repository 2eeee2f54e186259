//! A network without values: layers in order, the place of each parameter in memory, and the cost of a step.
//!
//! The order of a step is defined once, as [`Phase`]s. The trainer's engine runs these phases with values, and `allfold-prediction`
//! with costs alone, so both run the same phases in the same order.

mod builder;
mod context_split;
mod expert_split;
mod gradients_held;
mod layout;
mod outline;
mod recompute;
mod sequence_split;
mod split;
mod tensor_split;
mod tensors;

pub use builder::Builder;
pub use context_split::ContextSplit;
pub use expert_split::ExpertSplit;
pub use layout::ParamLayout;
pub use outline::{Outline, layer_of};
pub use split::NetworkSplit;
pub use tensor_split::TensorSplit;
pub use tensors::{LayerTensors, NetworkTensors};

use crate::layers::{Init, Layer, PassKind, PeerCall};
use crate::{Error, Result, pattern};
use allfold_base::suggest::nearest;
use allfold_kernels::nn::{ClassSplit, Float, Loss, LossKind, OpCost};
use gradients_held::gradients_held;
use std::ops::Range;

/// A parameter or buffer, and its range in the flat buffer of all parameters or buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// The name, such as `conv1.weight`.
    pub name: String,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The tensor's elements in the flat buffer.
    pub range: Range<usize>,
    /// How the initial values are drawn.
    pub init: Init,
}

/// One phase of a step. [`Network::forward_phases`] and [`Network::backward_phases`] give their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Ranks add up the forward sums of a synchronised layer.
    SyncForward(usize),
    /// Forward through a layer.
    Forward(usize),
    /// The loss, and its gradient with respect to the network's output.
    Loss,
    /// The gradients of a layer's parameters.
    WeightGrad(usize),
    /// A parameter's gradient is final, and may be sent.
    Ready(usize),
    /// Ranks add up the backward sums of a synchronised layer.
    SyncBackward(usize),
    /// The gradient of a layer's input.
    InputGrad(usize),
    /// Forward through a layer of a [recomputed](Network::recompute) block again, before the block's backward phases.
    Recompute(usize),
}

/// Layers in order, each fed by activations before it. Activation 0 is the input, activation l + 1 is the output of layer l. The
/// outputs of the last layer are logits: `rows` rows per sample, with one label each.
///
/// ```text
/// a residual block    0 -conv-> 1 -relu-> 2 -conv-> 3 -+
///                     '--------------------------------add-> 4
/// ```
pub struct Network<F> {
    layers: Vec<Box<dyn Layer<F>>>,
    names: Vec<String>,
    /// The activations that each layer reads.
    from: Vec<Vec<usize>>,
    /// For each activation, the activation in whose memory it is stored; most have memory of their own.
    storages: Vec<usize>,
    params: Vec<ParamSpec>,
    buffers: Vec<ParamSpec>,
    /// For each layer: its parameters by number, their elements, its buffers' elements.
    spans: Vec<Spans>,
    /// For each parameter: whether it is frozen.
    frozen: Vec<bool>,
    rows: usize,
    loss: LossKind,
    /// For each layer, the operations of a step over one sample; `None` if they are those of the layers themselves.
    costs: Option<Vec<u64>>,
    class_split: Option<ClassSplit>,
    /// The blocks of layers whose activations are recomputed in the backward pass.
    recomputed: Vec<Range<usize>>,
}

struct Spans {
    params: Range<usize>,
    values: Range<usize>,
    buffers: Range<usize>,
    /// Whether the parameters belong to another layer.
    tied: bool,
}

impl<F: Float> Network<F> {
    /// Named layers, each fed by the one before it.
    ///
    /// # Errors
    /// If there is no layer, or a layer's input size differs from the output size of the layer before it.
    pub fn new(layers: Vec<(String, Box<dyn Layer<F>>)>) -> Result<Network<F>> {
        let mut builder = Builder::new(layers.first().map_or(0, |(_, first)| first.inputs()));
        for (at, (name, layer)) in layers.into_iter().enumerate() {
            builder.add(&name, layer, &[at], None)?;
        }
        builder.build(1)
    }

    /// The names of the layers.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The activations that a layer reads.
    pub fn from(&self, layer: usize) -> &[usize] {
        &self.from[layer]
    }

    /// The activation in whose memory activation `act` is stored: itself, or one that no layer reads any more when `act` is
    /// written.
    pub fn storage_of(&self, act: usize) -> usize {
        self.storages[act]
    }

    /// A layer that works in place takes the memory of an input that no other layer reads, and that the layer which wrote it
    /// does not need for its backward pass. The samples themselves are never overwritten.
    fn assign_storage(&self) -> Vec<usize> {
        let mut readers = vec![0; self.layers.len() + 1];
        self.from.iter().flatten().for_each(|&from| readers[from] += 1);
        let free = |&&from: &&usize| {
            from > 0
                && readers[from] == 1
                && self.layers[from - 1].traits().free_output
                && !self.begins_recomputed(from)
        };
        let mut storages = vec![0];
        for (l, (layer, from)) in self.layers.iter().zip(&self.from).enumerate() {
            let input = if layer.traits().in_place && !self.ends_recomputed(l) {
                from.iter().find(free)
            } else {
                None
            };
            storages.push(input.map_or(storages.len(), |&input| storages[input]));
        }
        storages
    }

    /// Rows of logits per sample, each with a label.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Sets the loss.
    pub fn set_loss(&mut self, kind: LossKind) {
        self.loss = kind;
    }

    /// Freezes the parameters that the patterns `frozen` cover, except those that the patterns `trained` cover: a frozen parameter
    /// keeps its value, has no gradient, and is not sent. Batch norms with frozen weights still update their running statistics.
    ///
    /// A pattern is the name of a layer, a block or a parameter; `*` matches any characters.
    ///
    /// # Errors
    /// If a pattern covers no parameter, or no parameter is left to train.
    pub fn freeze(&mut self, frozen: &[String], trained: &[String]) -> Result<()> {
        for (patterns, freezes, what) in [(frozen, true, "frozen layer"), (trained, false, "trained layer")] {
            for pattern in patterns {
                let mut found = false;
                for (place, frozen) in self.params.iter().zip(&mut self.frozen) {
                    if pattern::covers(pattern, &place.name) {
                        (found, *frozen) = (true, freezes);
                    }
                }
                if !found {
                    return Err(self.unknown(what, pattern));
                }
            }
        }
        if !self.frozen.is_empty() && self.frozen.iter().all(|&frozen| frozen) {
            let what =
                "`model.frozen` names every parameter; leave some to train, or name them in `model.trained`";
            return Err(Error::Config(what.into()));
        }
        Ok(())
    }

    /// The names of the layers that have parameters of their own.
    fn names_with_params(&self) -> Vec<String> {
        let own = |spans: &Spans| !spans.params.is_empty() && !spans.tied;
        let names = self.names.iter().zip(&self.spans).filter(|(_, spans)| own(spans));
        names.map(|(name, _)| name.clone()).collect()
    }

    /// The error for a pattern that covers no parameter: it suggests the nearest layer or block around layers, or lists the layers.
    fn unknown(&self, what: &str, pattern: &str) -> Error {
        let names = self.names_with_params();
        let blocks = names.iter().flat_map(|name| name.match_indices('.').map(|(dot, _)| &name[..dot]));
        match nearest(pattern, blocks.chain(names.iter().map(String::as_str))) {
            Some(nearest) => Error::Config(format!("unknown {what} `{pattern}`; the nearest is `{nearest}`")),
            None => crate::error::unknown_layer(what, pattern, &names),
        }
    }

    /// Whether a parameter is frozen.
    pub fn frozen(&self, param: usize) -> bool {
        self.frozen[param]
    }

    /// Elements of all parameters that are trained.
    pub fn trained_count(&self) -> usize {
        let trained = self.params.iter().zip(&self.frozen).filter(|(_, frozen)| !**frozen);
        trained.map(|(place, _)| place.range.len()).sum()
    }

    /// For each activation: whether it depends on a trained parameter.
    fn trained(&self) -> Vec<bool> {
        let mut trained = vec![false];
        for (spans, from) in self.spans.iter().zip(&self.from) {
            let own = spans.params.clone().any(|param| !self.frozen[param]);
            trained.push(own || from.iter().any(|&from| trained[from]));
        }
        trained
    }

    /// Whether layers that are tied to this one add to the gradients of its parameters. False for a tied layer itself, whose
    /// parameters belong to another layer.
    pub fn shares(&self, layer: usize) -> bool {
        let of = &self.spans[layer];
        !of.tied && self.spans.iter().any(|spans| spans.tied && spans.params == of.params)
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[Box<dyn Layer<F>>] {
        &self.layers
    }

    /// Every parameter, in order of registration.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    /// Every buffer, in order of registration.
    pub fn buffers(&self) -> &[ParamSpec] {
        &self.buffers
    }

    /// The number of elements of all parameters.
    pub fn param_count(&self) -> usize {
        self.params.last().map_or(0, |last| last.range.end)
    }

    /// The number of elements of all buffers.
    pub fn buffer_count(&self) -> usize {
        self.buffers.last().map_or(0, |last| last.range.end)
    }

    /// The number of input features of a sample.
    pub fn inputs(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.inputs())
    }

    /// The number of logits of a row.
    pub fn classes(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.outputs() / self.rows)
    }

    /// The loss over this network's logits.
    pub fn loss(&self) -> Loss {
        Loss { classes: self.classes(), kind: self.loss }
    }

    /// The classes that this network computes logits for, where ranks share each row of logits; else `None`.
    pub fn class_split(&self) -> Option<ClassSplit> {
        self.class_split
    }

    /// The indices in [`Network::params()`] of a layer's parameters; of a tied layer, those of the layer that owns the parameters.
    pub fn params_of(&self, layer: usize) -> Range<usize> {
        self.spans[layer].params.clone()
    }

    /// The elements of a layer's parameters in the flat buffer of all parameters.
    pub fn values_of(&self, layer: usize) -> Range<usize> {
        self.spans[layer].values.clone()
    }

    /// The elements of a layer's buffers in the flat buffer of all buffers.
    pub fn buffers_of(&self, layer: usize) -> Range<usize> {
        self.spans[layer].buffers.clone()
    }

    /// Synchronises every layer that normalises by a batch: from now on it normalises by the samples of all ranks. Returns the
    /// number of changed layers. Parameters and buffers keep their values.
    pub fn synchronise(&mut self) -> usize {
        self.layers.iter_mut().filter_map(|layer| layer.synchronise().then_some(())).count()
    }

    /// Checks a batch of `n` samples on a rank.
    ///
    /// # Errors
    /// [`Error::Batch`]: a layer would compute its statistics from one value.
    pub fn normalises(&self, n: usize) -> Result<()> {
        let needs = "a rank needs 2 samples or more, or `model.sync_batch_norm`";
        let layer = self.layers.iter().position(|layer| (1..layer.min_batch()).contains(&n));
        layer.map_or(Ok(()), |layer| Err(self.one_value(layer, needs)))
    }

    /// Checks a batch of all ranks by `totals`, the sums over ranks of a synchronised layer.
    ///
    /// # Errors
    /// [`Error::Batch`]: the layer would compute its statistics from one value.
    pub fn normalises_all(&self, layer: usize, totals: &[f64]) -> Result<()> {
        match self.layers[layer].batch_suffices(totals) {
            true => Ok(()),
            false => Err(self.one_value(layer, "all ranks together need 2 samples or more")),
        }
    }

    fn one_value(&self, layer: usize, needs: &str) -> Error {
        Error::Batch(format!(
            "layer `{}` normalises over the batch, and the batch has 1 value per channel; {needs}",
            self.names[layer]
        ))
    }

    /// The phases of a forward pass in training.
    pub fn forward_phases(&self) -> Vec<Phase> {
        let phases = |layer: usize| {
            let shares = self.layers[layer].sync_len().0 > 0;
            shares.then_some(Phase::SyncForward(layer)).into_iter().chain([Phase::Forward(layer)])
        };
        (0..self.layers.len()).flat_map(phases).collect()
    }

    /// The phases of a backward pass: last layer first; within a layer, last parameter first. The gradient of an activation is
    /// computed only where a trained parameter comes before: not for the network's own input, nor for activations that only frozen
    /// layers made.
    pub fn backward_phases(&self) -> Vec<Phase> {
        let mut phases = vec![Phase::Loss];
        let (trained, reached) = (self.trained(), self.reached());
        for (layer, spans) in self.spans.iter().enumerate().rev().filter(|(layer, _)| reached[layer + 1]) {
            let own = spans.params.clone().rev().filter(|&param| !self.frozen[param] && !spans.tied);
            let trains = spans.params.clone().any(|param| !self.frozen[param]);
            let sums = self.layers[layer].sync_len().1 > 0;
            let passed = self.from[layer].iter().any(|&from| trained[from]);
            let late = passed && self.layers[layer].traits().needs_gradients;
            // The sums of a synchronised layer are its parameters' gradients, frozen or not.
            if trains || sums && passed && !spans.params.is_empty() {
                phases.push(Phase::WeightGrad(layer));
            }
            if !late {
                phases.extend(own.clone().map(Phase::Ready));
            }
            if passed {
                if sums {
                    phases.push(Phase::SyncBackward(layer));
                }
                phases.push(Phase::InputGrad(layer));
            }
            if late {
                phases.extend(own.map(Phase::Ready));
            }
        }
        self.with_recomputed(phases)
    }

    /// The parameters that are trained, in the order in which their gradients become ready.
    pub fn order(&self) -> Vec<usize> {
        let ready = |phase| if let Phase::Ready(param) = phase { Some(param) } else { None };
        self.backward_phases().into_iter().filter_map(ready).collect()
    }

    /// The parameters that are trained but that the loss does not depend on.
    pub fn unreached(&self) -> Vec<usize> {
        let mut reached = self.frozen.clone();
        self.order().into_iter().for_each(|param| reached[param] = true);
        (0..reached.len()).filter(|param| !reached[*param]).collect()
    }

    /// For each activation: whether the loss depends on it.
    fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.layers.len() + 1];
        reached[self.layers.len()] = true;
        for layer in (0..self.layers.len()).rev() {
            if reached[layer + 1] {
                self.from[layer].iter().for_each(|&from| reached[from] = true);
            }
        }
        reached
    }

    /// The cost of a phase over `n` samples.
    pub fn cost(&self, phase: Phase, n: usize) -> OpCost {
        match phase {
            Phase::SyncForward(layer) => self.layers[layer].cost(n).sums,
            Phase::Forward(layer) | Phase::Recompute(layer) => self.layers[layer].cost(n).forward,
            Phase::Loss => self.loss().cost::<F>(n * self.rows),
            Phase::WeightGrad(layer) => self.layers[layer].cost(n).params,
            Phase::InputGrad(layer) => self.layers[layer].cost(n).input,
            Phase::Ready(_) | Phase::SyncBackward(_) => OpCost::default(),
        }
    }

    /// The calls of a phase over `n` samples to the ranks along the axis of its layer, or in the loss to those that share the
    /// classes.
    pub fn peer_calls(&self, phase: Phase, n: usize) -> Vec<PeerCall> {
        let rows = n * self.rows;
        match (phase, self.class_split, self.loss) {
            (Phase::Forward(l) | Phase::Recompute(l), ..) => self.layers[l].peer_calls(PassKind::Forward, n),
            (Phase::WeightGrad(l), ..) => self.layers[l].peer_calls(PassKind::WeightGrad, n),
            (Phase::InputGrad(l), ..) => self.layers[l].peer_calls(PassKind::InputGrad, n),
            (Phase::Loss, Some(_), LossKind::CrossEntropy) => {
                vec![PeerCall::Max(rows), PeerCall::Sum(2 * rows)]
            }
            (Phase::Loss, Some(_), LossKind::Mse) => vec![PeerCall::Sum(rows)],
            _ => Vec::new(),
        }
    }

    /// Number of elements that the ranks sum in a phase.
    pub fn sync_len(&self, phase: Phase) -> usize {
        match phase {
            Phase::SyncForward(layer) => self.layers[layer].sync_len().0,
            Phase::SyncBackward(layer) => self.layers[layer].sync_len().1,
            _ => 0,
        }
    }

    /// Bytes that a rank holds while it trains on `n` samples at a time: parameters with gradients, velocities and buckets;
    /// buffers; and, of every sample, its activations, their gradients while they are needed, and what layers save. Of the recomputed
    /// blocks only one holds more than its input and output at a time.
    pub fn memory(&self, n: usize) -> u64 {
        let held = |l: usize| {
            let values = if self.is_recomputed(l) { 0 } else { self.values_held(l, n) };
            values * size_of::<F>() as u128 + self.layers[l].saved(n).1 as u128 * size_of::<u32>() as u128
        };
        let numbers = self.recomputed_values(n)
            + 4 * self.param_count() as u128
            + self.buffer_count() as u128
            + n as u128 * (self.inputs() as u128 + gradients_held(self));
        let all = numbers * size_of::<F>() as u128 + (0..self.layers.len()).map(held).sum::<u128>();
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}
