//! The sizes of a step's tensors, and which of them each phase reads: what an engine without values needs to count bytes.

use super::{Network, Phase};
use allfold_kernels::nn::Float;

/// The tensors of a layer, per sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerTensors {
    /// The number of values of the layer's first input.
    pub inputs: usize,
    /// The number of values of the layer's output.
    pub outputs: usize,
    /// Values of the output's gradient that the backward pass reads: `outputs`, or more if the layer gathers it.
    pub gradient: usize,
    /// Whether the gradient of each input is the gradient of the output.
    pub passes_on: bool,
    /// Whether the gradient of the input is written over that of the output.
    pub in_place: bool,
    /// Whether the parameters' gradients over a micro-batch are read again after they were added to those of earlier ones.
    pub keeps_gradients: bool,
}

/// The tensors of a network. Activations are numbered as those of a [`Network`].
pub trait NetworkTensors {
    /// The storages of the activations that a phase reads.
    fn reads(&self, phase: Phase) -> [Option<usize>; 3];
    /// The activation in whose memory activation `act` is stored.
    fn storage_of(&self, act: usize) -> usize;
    /// The activations that a layer reads.
    fn inputs_of(&self, layer: usize) -> Vec<usize>;
    /// The sizes of a layer's tensors.
    fn layer(&self, layer: usize) -> LayerTensors;
    /// The numbers of (values, indices) that a forward pass over `n` samples saves besides activations.
    fn saved(&self, layer: usize, n: usize) -> (usize, usize);
    /// Whether the output of a layer, and the values that it saves, are freed after the forward pass and recomputed in the backward
    /// pass.
    fn is_recomputed(&self, _layer: usize) -> bool {
        false
    }
}

impl<F: Float> NetworkTensors for Network<F> {
    fn reads(&self, phase: Phase) -> [Option<usize>; 3] {
        let input = |l: usize| self.storage_of(self.from(l)[0]);
        let output = |l: usize| (!self.layers()[l].traits().free_output).then(|| self.storage_of(l + 1));
        match phase {
            Phase::SyncForward(l) => [Some(input(l)), None, None],
            Phase::Forward(l) | Phase::Recompute(l) => {
                let second = self.from(l).get(1).map(|&from| self.storage_of(from));
                [Some(input(l)), second, None]
            }
            Phase::Loss => [Some(self.storage_of(self.layers().len())), None, None],
            Phase::WeightGrad(l) => [Some(input(l)), output(l), None],
            Phase::InputGrad(l) => {
                let layer = &self.layers()[l];
                match (layer.traits().identity_backward, layer.traits().in_place) {
                    (true, _) => [None; 3],
                    (false, true) => [Some(self.storage_of(l + 1)), None, None],
                    (false, false) => [Some(input(l)), output(l), None],
                }
            }
            Phase::Ready(_) | Phase::SyncBackward(_) => [None; 3],
        }
    }

    fn storage_of(&self, act: usize) -> usize {
        Network::storage_of(self, act)
    }

    fn inputs_of(&self, layer: usize) -> Vec<usize> {
        self.from(layer).to_vec()
    }

    fn layer(&self, layer: usize) -> LayerTensors {
        let layer = &self.layers()[layer];
        LayerTensors {
            inputs: layer.inputs(),
            outputs: layer.outputs(),
            gradient: layer.gradient_len(),
            passes_on: layer.traits().identity_backward,
            in_place: layer.traits().in_place,
            keeps_gradients: layer.traits().needs_gradients || layer.sync_len().1 > 0,
        }
    }

    fn saved(&self, layer: usize, n: usize) -> (usize, usize) {
        self.layers()[layer].saved(n)
    }

    fn is_recomputed(&self, layer: usize) -> bool {
        self.recomputed.iter().any(|block| (block.start..block.end - 1).contains(&layer))
    }
}
