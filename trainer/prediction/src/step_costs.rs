//! The costs of a step's phases.

use allfold_sim::Picos;
use allfold_trainer::buckets::Caps;
use allfold_trainer::{ParamSpec, Phase};

/// The times of the parts of a step on one device.
pub trait StepCosts {
    /// Every parameter, in order of registration.
    fn params(&self) -> &[ParamSpec];
    /// The phases of a forward pass.
    fn forward_phases(&self) -> Vec<Phase>;
    /// The phases of a backward pass.
    fn backward_phases(&self) -> Vec<Phase>;
    /// Number of elements that the ranks sum in a phase.
    fn sync_len(&self, phase: Phase) -> usize;
    /// How long a phase takes over `n` samples.
    fn takes(&self, phase: Phase, n: usize) -> Picos;
    /// The time to prepare a batch of `n` samples.
    fn data(&self, n: usize) -> Picos;
    /// How long the optimiser's step takes, with unscaling and clipping.
    fn optimiser(&self) -> Picos;
    /// How long it takes to add `elements` to the accumulated gradients.
    fn accumulate(&self, elements: usize) -> Picos;
    /// How long it takes to divide and copy `elements` into a bucket.
    fn pack(&self, elements: usize) -> Picos;
    /// The time to copy `elements` from a bucket back.
    fn unpack(&self, elements: usize) -> Picos;
    /// Bytes of an element of a gradient, in the type in which it is sent.
    fn element(&self) -> usize;

    /// Elements of all parameters.
    fn elements(&self) -> usize {
        self.params().last().map_or(0, |last| last.range.end)
    }
}

/// How data-parallel training runs a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DdpOptions {
    /// The number of samples of a rank.
    pub batch: usize,
    /// The number of samples of a micro-batch.
    pub micro_batch: usize,
    /// The sizes at which buckets close; `None`: nothing is exchanged.
    pub caps: Option<Caps>,
    /// Whether buckets are views of the gradients where possible, summed in place and not copied.
    pub views: bool,
    /// Whether ranks agree on a loss scale in each step.
    pub scaler: bool,
}
