//! A network without its numbers: layers in order, where each parameter lies, and what a step costs.
//!
//! The order of a step is written down once, as [`Phase`]s, and both kinds of run follow it: [`crate::Model`] with
//! numbers, [`crate::modeled`] with costs alone. So a prediction cannot drift from what is executed.

use crate::layers::{Init, Layer};
use crate::{Error, Result};
use allfold_kernels::nn::{Cost, CrossEntropy, Float};
use std::ops::Range;

/// One parameter or buffer, and where it lies in the flat buffer of all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// `conv1.weight`, ...
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Elements in the flat buffer.
    pub range: Range<usize>,
    /// Values at the start.
    pub init: Init,
}

/// One part of a step, in the order in which they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// What the ranks add up before going forward through a layer.
    ForwardSums(usize),
    /// Forward through a layer.
    Forward(usize),
    /// The loss and its gradient by the network's output.
    Loss,
    /// The gradients of a layer's parameters.
    Params(usize),
    /// A parameter's gradient is final, and may be sent.
    Ready(usize),
    /// What the ranks add up before the gradient of a layer's input.
    BackwardSums(usize),
    /// The gradient of a layer's input.
    Input(usize),
}

/// Layers in order. The last one's outputs are logits, one per class.
pub struct Network<F> {
    layers: Vec<Box<dyn Layer<F>>>,
    params: Vec<Place>,
    buffers: Vec<Place>,
    /// Of each layer: its parameters by number, their elements, its buffers' elements.
    spans: Vec<Spans>,
}

struct Spans {
    params: Range<usize>,
    values: Range<usize>,
    buffers: Range<usize>,
}

impl<F: Float> Network<F> {
    /// Named layers, first to last.
    ///
    /// # Errors
    /// If there is none, or one does not take what the one before it gives.
    pub fn new(layers: Vec<(String, Box<dyn Layer<F>>)>) -> Result<Network<F>> {
        for pair in layers.windows(2) {
            let [(before, a), (after, b)] = pair else { continue };
            if a.outputs() != b.inputs() {
                let (gives, takes) = (a.outputs(), b.inputs());
                return Err(Error::Network(format!(
                    "{before} gives {gives} numbers but {after} takes {takes}"
                )));
            }
        }
        if layers.is_empty() {
            return Err(Error::Network("a network needs at least one layer".into()));
        }
        let (mut params, mut buffers, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        for (name, layer) in &layers {
            let first = params.len();
            let values = lay_out(&mut params, name, layer.params());
            let state = lay_out(&mut buffers, name, layer.buffers());
            spans.push(Spans { params: first..params.len(), values, buffers: state });
        }
        let layers = layers.into_iter().map(|(_, layer)| layer).collect();
        Ok(Network { layers, params, buffers, spans })
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[Box<dyn Layer<F>>] {
        &self.layers
    }

    /// Every parameter, in order of registration.
    pub fn params(&self) -> &[Place] {
        &self.params
    }

    /// Every buffer, in order of registration.
    pub fn buffers(&self) -> &[Place] {
        &self.buffers
    }

    /// Elements of all parameters.
    pub fn param_count(&self) -> usize {
        self.params.last().map_or(0, |last| last.range.end)
    }

    /// Elements of all buffers.
    pub fn buffer_count(&self) -> usize {
        self.buffers.last().map_or(0, |last| last.range.end)
    }

    /// Numbers per sample that go in.
    pub fn inputs(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.inputs())
    }

    /// Logits per sample that come out.
    pub fn classes(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.outputs())
    }

    /// The loss over this network's logits.
    pub fn loss(&self) -> CrossEntropy {
        CrossEntropy { classes: self.classes() }
    }

    /// The elements of a layer's parameters.
    pub(crate) fn values_of(&self, layer: usize) -> Range<usize> {
        self.spans[layer].values.clone()
    }

    /// The elements of a layer's buffers.
    pub(crate) fn buffers_of(&self, layer: usize) -> Range<usize> {
        self.spans[layer].buffers.clone()
    }

    /// Synchronises, in place, every layer that normalises by a batch: from now on by the samples of all ranks. Says
    /// how many it changed. Parameters and buffers are what they were.
    pub fn synchronise(&mut self) -> usize {
        self.layers.iter_mut().filter_map(|layer| layer.synchronise().then_some(())).count()
    }

    /// The phases of a forward pass in training.
    pub fn forward_phases(&self) -> Vec<Phase> {
        let phases = |layer: usize| {
            let shares = self.layers[layer].shared().0 > 0;
            shares.then_some(Phase::ForwardSums(layer)).into_iter().chain([Phase::Forward(layer)])
        };
        (0..self.layers.len()).flat_map(phases).collect()
    }

    /// The phases of a backward pass: last layer first; within a layer, last parameter first. The gradient of the
    /// network's own input is nobody's business and is not computed.
    pub fn backward_phases(&self) -> Vec<Phase> {
        let mut phases = vec![Phase::Loss];
        for (layer, spans) in self.spans.iter().enumerate().rev() {
            if !spans.params.is_empty() {
                phases.push(Phase::Params(layer));
                phases.extend(spans.params.clone().rev().map(Phase::Ready));
            }
            if layer > 0 {
                if self.layers[layer].shared().1 > 0 {
                    phases.push(Phase::BackwardSums(layer));
                }
                phases.push(Phase::Input(layer));
            }
        }
        phases
    }

    /// What a phase costs over `n` samples.
    pub fn cost(&self, phase: Phase, n: usize) -> Cost {
        match phase {
            Phase::ForwardSums(layer) => self.layers[layer].cost(n).sums,
            Phase::Forward(layer) => self.layers[layer].cost(n).forward,
            Phase::Loss => self.loss().cost::<F>(n),
            Phase::Params(layer) => self.layers[layer].cost(n).params,
            Phase::Input(layer) => self.layers[layer].cost(n).input,
            Phase::Ready(_) | Phase::BackwardSums(_) => Cost::default(),
        }
    }

    /// How many numbers the ranks add up in a phase.
    pub fn shared(&self, phase: Phase) -> usize {
        match phase {
            Phase::ForwardSums(layer) => self.layers[layer].shared().0,
            Phase::BackwardSums(layer) => self.layers[layer].shared().1,
            _ => 0,
        }
    }

    /// Bytes that a rank holds while it trains on `n` samples at a time: parameters with gradients, velocities and
    /// buckets; buffers; and of every sample what goes through the layers and what they keep of it.
    pub fn memory(&self, n: usize) -> u64 {
        let held = |layer: &dyn Layer<F>| {
            let (values, places) = layer.saved(n);
            let gradients = 2 * n as u128 * layer.inputs() as u128;
            let values = values as u128 + n as u128 * layer.outputs() as u128 + gradients;
            values * size_of::<F>() as u128 + places as u128 * size_of::<u32>() as u128
        };
        let numbers =
            4 * self.param_count() as u128 + self.buffer_count() as u128 + (n * self.inputs()) as u128;
        let all =
            numbers * size_of::<F>() as u128 + self.layers.iter().map(|layer| held(&**layer)).sum::<u128>();
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Forward, loss and backward over `n` samples together.
    pub fn step_cost(&self, n: usize) -> Cost {
        self.forward_phases().into_iter().chain(self.backward_phases()).map(|phase| self.cost(phase, n)).sum()
    }
}

/// Appends a layer's tensors to the flat layout and returns the elements they take.
fn lay_out(places: &mut Vec<Place>, layer: &str, tensors: Vec<crate::layers::Tensor>) -> Range<usize> {
    let start = places.last().map_or(0, |last| last.range.end);
    let mut end = start;
    for tensor in tensors {
        let range = end..end + tensor.len();
        end = range.end;
        let name = format!("{layer}.{}", tensor.name);
        places.push(Place { name, shape: tensor.shape, range, init: tensor.init });
    }
    start..end
}
