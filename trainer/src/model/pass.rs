//! What a pass over a model is given, who hears of it, and what it leaves in memory.

use crate::{Error, Network, Result};
use allfold_collectives::Buffer;
use allfold_kernels::nn::{Float, OpCost};
use std::ops::Range;

/// Hears of the events of a backward pass.
pub trait Listener<F: Float> {
    /// Computation of this cost was just done.
    fn on_cost(&mut self, cost: OpCost);

    /// The gradient of parameter `param` is final; it is at `elements` of `grads`. Called once per parameter, the last
    /// parameter first. During the pass the listener may cut final elements off the end of `grads` and keep them; it must join
    /// them again afterwards.
    ///
    /// # Errors
    /// Whatever stops the pass.
    fn on_grad(&mut self, param: usize, elements: Range<usize>, grads: &mut Buffer<F>) -> Result<()>;

    /// Replaces `values` by their sums over all ranks. A single rank leaves them as they are.
    ///
    /// # Errors
    /// Whatever stops the pass.
    fn all_reduce(&mut self, _values: &mut [f64]) -> Result<()> {
        Ok(())
    }
}

/// The objective of a backward pass: `scale` times the mean loss over these labels.
#[derive(Clone, Copy, Debug)]
pub struct Objective<'a, F> {
    /// One label per row of logits of the last forward pass.
    pub labels: &'a [u32],
    /// The factor on the loss: a micro-batch's share of its step, times the loss scale.
    pub scale: F,
    /// Whether more micro-batches of the same step follow. The gradients are then held back and added to theirs.
    pub more: bool,
}

impl<'a, F: Float> Objective<'a, F> {
    /// The mean loss over these labels, and nothing after.
    pub fn mean(labels: &'a [u32]) -> Objective<'a, F> {
        Objective { labels, scale: F::ONE, more: false }
    }
}

/// The step, micro-batch and rank of a pass: with the seed they determine every random draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrawKey {
    /// Seed of the run.
    pub seed: u64,
    /// Step of the run.
    pub step: u32,
    /// Micro-batch of the step, from 1 while there is one; `accumulate` may be 65,536.
    pub micro: u32,
    /// Rank, of which no two draw alike.
    pub rank: u16,
}

impl DrawKey {
    /// The key of random draws: the step, and the micro-batch with the rank. Different for each of 65,536 micro-batches and
    /// ranks.
    pub(crate) fn key(&self) -> [u32; 2] {
        // Micro-batch 65,536 takes the key that 0 would have, which no pass has.
        [self.step, self.micro << 16 | u32::from(self.rank)]
    }
}

/// Bytes that a rank holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemoryUse {
    /// Parameters.
    pub params: u64,
    /// Gradients, those held back between micro-batches included.
    pub gradients: u64,
    /// Running statistics.
    pub buffers: u64,
    /// Activations.
    pub activations: u64,
    /// Values that layers save for their backward pass.
    pub saved_for_backward: u64,
    /// Gradients of the loss by the activations.
    pub activation_gradients: u64,
    /// The optimiser's state; 0 for a model alone.
    pub optimiser: u64,
    /// Buckets that are not views of the gradients, and the state of their hook; 0 for a model alone.
    pub buckets: u64,
}

impl MemoryUse {
    /// The sum over all classes.
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

/// Refuses a batch in which a layer would normalise by one value.
pub(crate) fn normalises<F: Float>(network: &Network<F>, n: usize) -> Result<()> {
    match (0..network.layers().len()).find(|&l| (1..network.layers()[l].least()).contains(&n)) {
        Some(l) => {
            Err(one_value(&network.names()[l], "a rank needs 2 samples or more, or `sync_batch_norm`"))
        }
        None => Ok(()),
    }
}

/// Refuses a batch of all ranks in which a layer would normalise by one value, by the totals of the layer's sums.
pub(crate) fn normalises_all<F: Float>(network: &Network<F>, l: usize, totals: &[f64]) -> Result<()> {
    match network.layers()[l].enough(totals) {
        true => Ok(()),
        false => Err(one_value(&network.names()[l], "all ranks together need 2 samples or more")),
    }
}

fn one_value(layer: &str, needs: &str) -> Error {
    Error::Data(format!(
        "layer `{layer}` normalises over the batch, and the batch has 1 value per channel; {needs}"
    ))
}
