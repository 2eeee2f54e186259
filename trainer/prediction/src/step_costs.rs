//! The costs of a step's phases.

use allfold_kernels::nn::OpCost;
use allfold_sim::Picos;
use allfold_trainer::buckets::{Bucket, Caps};
use allfold_trainer::engine::MeshAxis;
use allfold_trainer::layers::PeerCall;
use allfold_trainer::strategies::hooks::HookCalls;
use allfold_trainer::{NetworkTensors, Outline, ParamSpec, Phase};
use std::ops::Range;
use std::sync::Arc;

/// A pass over the elements of parameters or gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementPass {
    /// The optimiser's step.
    Update,
    /// Division of gradients by the loss scale.
    Unscale,
    /// The bound on the norm of gradients.
    Clip,
    /// Addition to the accumulated gradients.
    Accumulate,
    /// Division of gradients by the number of ranks, in place or on the way into a bucket.
    Pack,
    /// The copy from a bucket back.
    Unpack,
}

/// A part of a step that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredPart {
    /// A pass over a micro-batch.
    Phase(Phase),
    /// The preparation of a batch.
    Data,
    /// The optimiser's step over this many elements.
    Update(usize),
}

/// How long a part of a step took.
pub type MeasuredTimes<'a> = &'a (dyn Fn(MeasuredPart) -> Picos + Sync);

/// The structure of one rank's part of a network, and the times of the parts of a step on its device.
pub trait StepCosts: Sync {
    /// The structure: layers and phases.
    fn outline(&self) -> Arc<Outline>;
    /// Every parameter, in order of registration.
    fn params(&self) -> &[ParamSpec];
    /// How long a phase takes over `n` samples.
    fn takes(&self, phase: Phase, n: usize) -> Picos;
    /// Bytes of an element of a gradient, in the type in which it is sent.
    fn element(&self) -> usize;

    /// The time to prepare a batch of `n` samples.
    fn data(&self, _n: usize) -> Picos {
        Picos::ZERO
    }
    /// How long a pass over `elements` of parameters or gradients takes.
    fn over(&self, _pass: ElementPass, _elements: usize) -> Picos {
        Picos::ZERO
    }
    /// The number of parameters of the whole network.
    fn parameters(&self) -> u64 {
        self.params().last().map_or(0, |last| last.range.end as u64)
    }
    /// The trained elements, each range with whether this rank's copy counts in sums over all ranks.
    fn trained(&self) -> Vec<(Range<usize>, bool)> {
        self.outline().trained().iter().map(|range| (range.clone(), true)).collect()
    }
    /// The parameters that are trained but that the loss does not depend on.
    fn unreached(&self) -> Vec<usize> {
        Vec::new()
    }
    /// Elements of all running statistics.
    fn buffers(&self) -> usize {
        0
    }
    /// What a hook does to exchange a bucket; `None` if the bucket is summed as it is.
    fn hook_calls(&self, _bucket: &Bucket) -> Option<HookCalls> {
        None
    }
    /// The number of elements of an activation of one sample.
    fn activation(&self, _act: usize) -> usize {
        0
    }
    /// Number of elements that the ranks of the data axis sum in a phase.
    fn sync_len(&self, _phase: Phase) -> usize {
        0
    }
    /// The axis along which a layer exchanges values, if it does.
    fn axis(&self, _layer: usize) -> Option<MeshAxis> {
        None
    }
    /// Whether the costs of a layer's passes are among its [`StepCosts::peer_calls`].
    fn charges_itself(&self, _layer: usize) -> bool {
        false
    }
    /// The calls of a phase over `n` samples to the ranks along the axis of its layer.
    fn peer_calls(&self, _phase: Phase, _n: usize) -> Vec<PeerCall> {
        Vec::new()
    }
    /// The calls by which a layer gathers the gradient of its output from these ranks, before its backward pass.
    fn gather_calls(&self, _layer: usize, _n: usize) -> Vec<PeerCall> {
        Vec::new()
    }
    /// The tensors of the network, if their sizes are known: then a rank's memory is predicted, too.
    fn tensors(&self) -> Option<&dyn NetworkTensors> {
        None
    }
    /// Bytes of an element of an activation, of its gradient and of what layers save.
    fn activation_element(&self) -> usize {
        self.element()
    }
    /// Elements of the optimiser's state for each element that a rank updates.
    fn optimiser_state(&self) -> usize {
        0
    }
    /// How long an operation of [`StepCosts::peer_calls`] of a phase takes.
    fn operation(&self, _phase: Phase, _cost: OpCost) -> Picos {
        Picos::ZERO
    }
}

/// How data-parallel training runs a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DdpOptions {
    /// The number of samples of a rank.
    pub batch: usize,
    /// The number of micro-batches of a step.
    pub accumulate: usize,
    /// The sizes at which buckets close; `None`: nothing is exchanged.
    pub caps: Option<Caps>,
    /// Whether buckets are views of the gradients where possible, summed in place and not copied.
    pub views: bool,
    /// Whether ranks agree on a loss scale in each step.
    pub scaler: bool,
}
