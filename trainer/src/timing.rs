//! The time of each part of a step, on the communicator's clock: virtual on the simulator, else real.

use crate::Phase;
use allfold_kernels::nn::OpCost;
use allfold_sim::{DeviceWork, Picos};
use std::ops::AddAssign;

/// The parts of a step, or of many steps together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StepBreakdown {
    /// Preparation of the batch.
    pub data: Picos,
    /// The forward pass.
    pub forward: Picos,
    /// Loss and backward pass, with copying gradients into buckets and back.
    pub backward: Picos,
    /// Waiting for communication that backward did not hide.
    pub exposed: Picos,
    /// The optimiser's step.
    pub optimiser: Picos,
}

impl StepBreakdown {
    /// The whole step.
    pub fn total(&self) -> Picos {
        self.data + self.forward + self.backward + self.exposed + self.optimiser
    }
}

impl AddAssign for StepBreakdown {
    fn add_assign(&mut self, other: StepBreakdown) {
        self.data += other.data;
        self.forward += other.forward;
        self.backward += other.backward;
        self.exposed += other.exposed;
        self.optimiser += other.optimiser;
    }
}

/// The work that a phase belongs to.
pub fn work_of(phase: Phase) -> StepWork {
    match phase {
        Phase::SyncForward(_) | Phase::Forward(_) | Phase::Recompute(_) => StepWork::Forward,
        Phase::Loss | Phase::InputGrad(_) | Phase::SyncBackward(_) | Phase::Ready(_) => StepWork::InputGrad,
        Phase::WeightGrad(_) => StepWork::WeightGrad,
    }
}

/// What a rank does in a span of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepWork {
    /// A forward pass.
    Forward,
    /// The loss, and gradients with respect to activations.
    InputGrad,
    /// Gradients with respect to parameters.
    WeightGrad,
    /// A backward pass: gradients with respect to activations and to parameters.
    Backward,
    /// Gradients are divided by the number of ranks.
    Divide,
    /// The rank waits for another rank.
    Waiting,
    /// The optimiser's step.
    Update,
}

impl StepWork {
    /// The name in plots and traces.
    pub fn name(self) -> &'static str {
        match self {
            StepWork::Forward => "forward",
            StepWork::InputGrad => "input gradients",
            StepWork::WeightGrad => "weight gradients",
            StepWork::Backward => "backward",
            StepWork::Divide => "divide",
            StepWork::Waiting => "waiting",
            StepWork::Update => "update",
        }
    }
}

/// A span of a step on one rank, by the communicator's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSpan {
    /// What the rank does.
    pub work: StepWork,
    /// The micro-batch that the work belongs to, from 0; `None` if it belongs to no single one.
    pub micro: Option<usize>,
    /// When the work begins.
    pub start: Picos,
    /// When the work ends.
    pub end: Picos,
}

/// A pass of one layer over a micro-batch, by the communicator's clock. Waiting in exchanges of the pass is included, except for the
/// sums of a synchronised batch norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpan {
    /// The number of the layer; `None`: the loss.
    pub layer: Option<usize>,
    /// The pass: forward, input gradients or weight gradients.
    pub work: StepWork,
    /// When the pass begins.
    pub start: Picos,
    /// When the pass ends.
    pub end: Picos,
}

/// The times of one bucket in one step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BucketTimes {
    /// The bucket's position in the order of sending, or the number of a unit that is exchanged as a whole.
    pub bucket: usize,
    /// The number of parameters in the bucket.
    pub params: usize,
    /// The number of bytes in the bucket.
    pub bytes: u64,
    /// When the bucket's last gradient was copied in.
    pub ready: Picos,
    /// When the bucket was handed to the communicator: after the bucket was ready and the previous bucket was sent.
    pub sent: Picos,
    /// When the bucket's all-reduce was complete.
    pub done: Picos,
}

/// How long the communication timeline was busy: buckets are exchanged one after another.
pub fn communication(buckets: &[BucketTimes]) -> Picos {
    let (mut free, mut busy) = (Picos::ZERO, Picos::ZERO);
    for bucket in buckets {
        let start = bucket.sent.later(free);
        busy += Picos(bucket.done.0.saturating_sub(start.0));
        free = free.later(bucket.done);
    }
    busy
}

/// A cost of arithmetic as work for the device model.
pub fn work(cost: OpCost) -> DeviceWork {
    DeviceWork {
        flops: cost.flops,
        bytes: cost.bytes,
        launches: u32::try_from(cost.launches).unwrap_or(u32::MAX),
        narrow: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communication_counts_each_moment_once() {
        let times = |sent, done| BucketTimes {
            bucket: 0,
            params: 1,
            bytes: 4,
            ready: Picos(sent),
            sent: Picos(sent),
            done: Picos(done),
        };
        // 10..30, then 30..45 (waited for the first), a gap, then 60..61.
        assert_eq!(communication(&[times(10, 30), times(20, 45), times(60, 61)]), Picos(36));
    }
}
