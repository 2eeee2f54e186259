//! The arguments of a pass over a network, and the memory that a rank holds.

use allfold_kernels::nn::DropoutStream;

/// The objective of a backward pass: `scale` times the mean loss over these labels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objective<'a, F> {
    /// The labels, one per row of logits of the last forward pass.
    pub labels: &'a [u32],
    /// The factor on the loss: a micro-batch's share of its step, times the loss scale.
    pub scale: F,
}

/// The seed, the step of a pass and the positions of its samples among all samples of the step. Together with the layer and an
/// element's position in its sample they determine every random draw, so draws do not depend on ranks and micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawKey {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the step in the run.
    pub step: u32,
    /// The position of the first sample among those of all ranks.
    pub first: u32,
    /// The distance to the position of the next sample: ranks take samples in turn.
    pub stride: u32,
}

impl Default for DrawKey {
    /// All samples of the first step, on one rank.
    fn default() -> DrawKey {
        DrawKey { seed: 0, step: 0, first: 0, stride: 1 }
    }
}

impl DrawKey {
    /// The key after `samples` samples of the step, for a later micro-batch.
    pub fn after(self, samples: usize) -> DrawKey {
        DrawKey { first: self.first.wrapping_add(self.stride.wrapping_mul(samples as u32)), ..self }
    }

    /// The stream of a layer's draws.
    pub(crate) fn stream(&self, layer: usize) -> DropoutStream {
        let DrawKey { seed, step, first, stride } = *self;
        DropoutStream { seed, step, layer: layer as u32, first, stride }
    }
}

/// Bytes that a rank holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemoryUse {
    /// Bytes of the parameters.
    pub params: u64,
    /// Bytes of the gradients, with those accumulated over micro-batches.
    pub gradients: u64,
    /// Bytes of the running statistics.
    pub buffers: u64,
    /// Bytes of the activations.
    pub activations: u64,
    /// Bytes of the values that layers save for their backward pass.
    pub saved_for_backward: u64,
    /// Bytes of the gradients with respect to activations, of free buffers for the next tensors, and of messages that are under way.
    pub activation_gradients: u64,
    /// Bytes of the optimiser's state; 0 for a model alone.
    pub optimiser: u64,
    /// Bytes of the buckets that are not views of the gradients, and of their hook's state; 0 for a model alone.
    pub buckets: u64,
}

impl MemoryUse {
    /// The sum of all fields.
    pub fn total(&self) -> u64 {
        let MemoryUse { params, gradients, buffers, activations, saved_for_backward, .. } = *self;
        let MemoryUse { activation_gradients, optimiser, buckets, .. } = *self;
        params
            + gradients
            + buffers
            + activations
            + saved_for_backward
            + activation_gradients
            + optimiser
            + buckets
    }
}
