//! A table of layers, and its phases.

use super::kernel::{Class, KernelCost};
use crate::layers::Init;
use crate::{ParamSpec, Phase};
use std::ops::Range;

/// A layer of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLayer {
    /// The layer's name.
    pub name: String,
    /// The number of elements of each parameter.
    pub params: Vec<usize>,
    /// The cost of the forward pass.
    pub forward: KernelCost,
    /// The cost of the gradients with respect to the parameters, if there are any.
    pub by_params: Option<KernelCost>,
    /// The cost of the gradient with respect to the input.
    pub by_input: Option<KernelCost>,
    /// The number of values that a pass over one sample keeps for the backward pass, as PyTorch keeps them.
    pub kept: u64,
    /// How many numbers the ranks add up for a synchronised batch norm, in the forward and in the backward pass.
    pub sync_len: (usize, usize),
}

impl TableLayer {
    /// A product or convolution, of which all three kernels cost the same.
    pub(super) fn product(name: &str, params: Vec<usize>, each: KernelCost, kept: usize) -> TableLayer {
        let (by_params, by_input) = (Some(each), Some(each));
        let sync_len = (0, 0);
        TableLayer {
            name: name.into(),
            params,
            forward: each,
            by_params,
            by_input,
            kept: kept as u64,
            sync_len,
        }
    }

    /// A layer without parameters that reads and writes so many numbers in the forward and in the backward pass.
    pub(super) fn elementwise(name: &str, forward: usize, backward: usize, kept: usize) -> TableLayer {
        let kernel = |values| KernelCost::new(Class::Elementwise, 0, values, 0);
        let by_input = Some(kernel(backward));
        TableLayer {
            by_params: None,
            by_input,
            ..TableLayer::product(name, Vec::new(), kernel(forward), kept)
        }
    }

    /// A normalisation of `x` numbers with two parameters of `width` elements: the forward pass reads and writes `passes` times `x`
    /// numbers; the backward pass reads x and dy for the parameters' gradients, and once more for the input's gradient, which it
    /// writes.
    pub(super) fn norm(name: &str, width: usize, x: usize, passes: usize) -> TableLayer {
        let kernel = |passes| KernelCost::new(Class::Normalisation, 0, passes * x, 0);
        let (by_params, by_input) = (Some(kernel(2)), Some(kernel(3)));
        TableLayer { by_params, by_input, ..TableLayer::product(name, vec![width; 2], kernel(passes), x) }
    }
}

/// A network as a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    name: String,
    /// The name of a sample: an image, a sequence.
    sample: String,
    layers: Vec<TableLayer>,
    places: Vec<ParamSpec>,
    /// For each layer: the index in `places` of its first parameter.
    firsts: Vec<usize>,
    /// What [`Workload::optimiser_passes`] returns.
    passes: usize,
}

impl Workload {
    pub(super) fn new(name: &str, sample: &str, layers: Vec<TableLayer>, passes: usize) -> Workload {
        let (mut places, mut firsts, mut end) = (Vec::new(), Vec::new(), 0);
        for layer in &layers {
            firsts.push(places.len());
            for (number, &elements) in layer.params.iter().enumerate() {
                let range = end..end + elements;
                end = range.end;
                let name = format!("{}.{number}", layer.name);
                places.push(ParamSpec { name, shape: vec![elements], range, init: Init::Constant(0.0) });
            }
        }
        Workload { name: name.into(), sample: sample.into(), layers, places, firsts, passes }
    }

    /// The workload's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of a sample: an image, a sequence.
    pub fn sample(&self) -> &str {
        &self.sample
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[TableLayer] {
        &self.layers
    }

    /// The parameters, in order of layers.
    pub fn places(&self) -> &[ParamSpec] {
        &self.places
    }

    /// For each layer: the elements of its parameters among all parameters.
    pub fn values(&self) -> Vec<Range<usize>> {
        let range = |(layer, &first): (&TableLayer, &usize)| {
            let own = &self.places[first..first + layer.params.len()];
            own.first().zip(own.last()).map_or(0..0, |(first, last)| first.range.start..last.range.end)
        };
        self.layers.iter().zip(&self.firsts).map(range).collect()
    }

    /// The number of elements of all parameters.
    pub fn parameters(&self) -> usize {
        self.places.last().map_or(0, |place| place.range.end)
    }

    /// Operations of a forward pass over one sample.
    pub fn forward_flops(&self) -> u64 {
        self.layers.iter().map(|layer| layer.forward.flops).sum()
    }

    /// How many times a step of the optimiser reads or writes an array as large as the parameters: weights, gradients, its state.
    pub fn optimiser_passes(&self) -> usize {
        self.passes
    }

    /// Values that a forward pass over one sample keeps for the backward pass.
    pub fn kept(&self) -> u64 {
        self.layers.iter().map(|layer| layer.kept).sum()
    }

    /// The kernel of a phase; `None` if the phase runs none.
    pub fn kernel(&self, phase: Phase) -> Option<&KernelCost> {
        match phase {
            Phase::Forward(layer) | Phase::Recompute(layer) => {
                self.layers.get(layer).map(|layer| &layer.forward)
            }
            Phase::WeightGrad(layer) => self.layers.get(layer)?.by_params.as_ref(),
            Phase::InputGrad(layer) => self.layers.get(layer)?.by_input.as_ref(),
            Phase::SyncForward(_) | Phase::SyncBackward(_) | Phase::Loss | Phase::Ready(_) => None,
        }
    }

    /// How many numbers the ranks add up in a phase, where batch norms are synchronised.
    pub fn sync_len(&self, phase: Phase) -> usize {
        match phase {
            Phase::SyncForward(layer) => self.layers.get(layer).map_or(0, |layer| layer.sync_len.0),
            Phase::SyncBackward(layer) => self.layers.get(layer).map_or(0, |layer| layer.sync_len.1),
            _ => 0,
        }
    }

    /// The phases of a forward pass, as [`crate::Network::forward_phases`] has them.
    pub fn forward_phases(&self, synchronised: bool) -> Vec<Phase> {
        let phases = |at: usize| {
            let sums = synchronised && self.layers[at].sync_len.0 > 0;
            sums.then_some(Phase::SyncForward(at)).into_iter().chain([Phase::Forward(at)])
        };
        (0..self.layers.len()).flat_map(phases).collect()
    }

    /// The phases of a backward pass, as [`crate::Network::backward_phases`] has them, except that all parameters of a layer are
    /// ready before the gradient of its input is computed.
    pub fn backward_phases(&self, synchronised: bool) -> Vec<Phase> {
        let mut phases = vec![Phase::Loss];
        for (at, layer) in self.layers.iter().enumerate().rev() {
            if !layer.params.is_empty() {
                phases.push(Phase::WeightGrad(at));
                let first = self.firsts[at];
                phases.extend((first..first + layer.params.len()).rev().map(Phase::Ready));
            }
            if at > 0 {
                if synchronised && layer.sync_len.1 > 0 {
                    phases.push(Phase::SyncBackward(at));
                }
                phases.push(Phase::InputGrad(at));
            }
        }
        phases
    }
}
