//! A micro-batch in flight on a device. Activations come from the queue's pool and return to it as soon as no backward phase needs
//! them, in whatever order the phases run.

use crate::Result;
use allfold_cuda::{Memory, Queue};
use allfold_kernels::nn::DropoutStream;
use allfold_networks::layer_of;
use allfold_networks::{Network, Phase};
use std::sync::Arc;

/// The tensors of one micro-batch.
pub struct SlotTensors {
    /// The number of samples.
    pub n: usize,
    /// The number of the micro-batch in its step.
    pub micro: usize,
    /// The divisor of the sum of the micro-batch's losses, which includes the loss scale.
    pub divisor: f32,
    /// The activations by number. Activation 0 is the network's input, which is stored in `input`.
    pub acts: Vec<Option<Arc<Memory>>>,
    /// The samples, or their tokens as u32. The memory fits a micro-batch, or a larger batch while the larger batch is evaluated.
    pub input: Memory,
    /// The labels as u32, one for each row of logits.
    pub labels: Memory,
    /// The key of dropout's random draws, as the words of a [`DropoutStream`].
    pub stream: Memory,
    /// For each layer, its first input converted to the layer's type and layout, if the input has others.
    pub casts: Vec<Option<Memory>>,
    /// For each layer, what its forward pass saves for its backward pass.
    pub saved: Vec<Vec<Memory>>,
    /// The gradients with respect to activations that the backward pass has computed.
    pub act_grads: Vec<Option<Arc<Memory>>>,
    /// For outputs of fused rectifiers: a second gradient, which is added where the gradient is read.
    pub(crate) second_grads: Vec<Option<Arc<Memory>>>,
    /// For residual sums before a layer norm: the sum's gradient in the type of the narrow summand.
    pub(crate) thin_grads: Vec<Option<Arc<Memory>>>,
    /// For each batch norm: the partial sums of its parameters' gradients, if its gradient was computed with them.
    pub(crate) sums: Vec<Option<Memory>>,
    left: BackwardCounts,
}

/// The numbers of backward phases that are still to run: of each layer, and of all layers that read or write each activation.
#[derive(Clone, Default)]
pub(crate) struct BackwardCounts {
    layers: Vec<u32>,
    acts: Vec<u32>,
}

impl BackwardCounts {
    /// The numbers at the start of a backward pass.
    pub fn of(network: &Network<f32>) -> BackwardCounts {
        let layers = network.layers().len();
        let mut counts = BackwardCounts { layers: vec![0; layers], acts: vec![0; layers + 1] };
        for phase in network.backward_phases() {
            if matches!(phase, Phase::WeightGrad(_) | Phase::SyncBackward(_) | Phase::InputGrad(_))
                && let Some(l) = layer_of(phase)
            {
                counts.layers[l] += 1;
                network.from(l).iter().chain(&[l + 1]).for_each(|act| counts.acts[*act] += 1);
            }
        }
        counts
    }
}

impl SlotTensors {
    /// An empty slot of a network of `layers` layers.
    pub fn new(layers: usize, queue: &Queue) -> Result<SlotTensors> {
        let fresh = |bytes| Memory::new(queue.machine(), queue.device(), bytes);
        Ok(SlotTensors {
            n: 0,
            micro: 0,
            divisor: 1.0,
            acts: vec![None; layers + 1],
            input: fresh(0)?,
            labels: fresh(0)?,
            stream: fresh(4 * DropoutStream::WORDS)?,
            casts: (0..layers).map(|_| None).collect(),
            saved: (0..layers).map(|_| Vec::new()).collect(),
            act_grads: vec![None; layers + 1],
            second_grads: vec![None; layers + 1],
            thin_grads: vec![None; layers + 1],
            sums: (0..layers).map(|_| None).collect(),
            left: BackwardCounts::default(),
        })
    }

    /// Drops all tensors but samples and labels, and begins to count backward phases.
    pub(crate) fn clear(&mut self, counts: &BackwardCounts) {
        self.acts.fill(None);
        self.casts.iter_mut().for_each(|cast| *cast = None);
        self.saved.iter_mut().for_each(Vec::clear);
        self.act_grads.fill(None);
        self.second_grads.fill(None);
        self.thin_grads.fill(None);
        self.sums.iter_mut().for_each(|sums| *sums = None);
        self.left.clone_from(counts);
    }

    /// After a backward phase of layer `l`, which reads the activations `from`: frees what no later phase needs.
    pub(crate) fn after_backward(&mut self, l: usize, from: &[usize]) {
        for &act in from.iter().chain(&[l + 1]) {
            self.left.acts[act] = self.left.acts[act].saturating_sub(1);
            if self.left.acts[act] == 0 {
                self.acts[act] = None;
            }
        }
        self.left.layers[l] = self.left.layers[l].saturating_sub(1);
        if self.left.layers[l] == 0 {
            self.casts[l] = None;
            self.saved[l].clear();
            (self.act_grads[l + 1], self.sums[l]) = (None, None);
        }
    }
}
