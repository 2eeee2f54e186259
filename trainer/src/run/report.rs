//! What a run says of itself: after each step, after each epoch, and at its end.

use crate::timing::{BucketTimes, StepBreakdown, StepSpan};
use crate::{Evaluation, MemoryUse};
use allfold_sim::Picos;

/// The outcome of a step, on this rank.
#[derive(Clone, Copy, Debug)]
pub struct StepReport<'a> {
    /// Number of the step, from 0.
    pub epoch: u64,
    /// The number of the step in the whole run, from 0.
    pub step: u64,
    /// Steps in the whole run.
    pub steps: u64,
    /// The mean loss of this rank's samples.
    pub loss: f64,
    /// The time of this step by parts.
    pub time: StepBreakdown,
    /// The learning rate.
    pub lr: f64,
    /// Bytes that this rank holds, by category.
    pub memory: MemoryUse,
    /// The times of each bucket, in the order of sending; empty on GPUs.
    pub buckets: &'a [BucketTimes],
    /// The memory when the rank held the most in this step. Without [`Observer::wants_spans`], and for `single`, `ddp` and
    /// GPUs, which hold as much all the time: as after the step.
    pub peak: MemoryUse,
    /// The rank's work and waiting in order, with [`Observer::wants_spans`]; empty for `single`, `ddp` and GPUs.
    pub spans: &'a [StepSpan],
}

/// The outcome of an epoch, over all ranks.
#[derive(Clone, Copy, Debug)]
pub struct EpochReport {
    /// Number of the step, from 0.
    pub epoch: u64,
    /// Steps of the whole run so far.
    pub steps: u64,
    /// The mean of the losses of its steps.
    pub loss: f64,
    /// The score on the test set.
    pub test: Evaluation,
}

/// Hears of a run's progress. `()` listens to nothing.
pub trait Observer {
    /// Whether it wants spans and the peak of memory, which cost time.
    fn wants_spans(&self) -> bool {
        false
    }
    /// A step is done.
    fn step(&mut self, _report: &StepReport) {}
    /// An epoch is done and evaluated.
    fn epoch(&mut self, _report: &EpochReport) {}
}

impl Observer for () {}

/// The outcome of a run. Losses, evaluation and hash are the same on every rank; times are this rank's.
#[derive(Clone, Debug)]
pub struct TrainResult {
    /// The loss of each step, averaged over ranks.
    pub losses: Vec<f64>,
    /// On the test set, after the last epoch.
    pub test: Evaluation,
    /// The bits of all parameters and buffers in one number.
    pub weights_hash: u64,
    /// Elements of all parameters.
    pub parameters: usize,
    /// Training samples that all ranks together went through, repeated ones included.
    pub samples: u64,
    /// The time of all steps, without evaluations.
    pub time: Picos,
    /// The time by parts of a step.
    pub breakdown: StepBreakdown,
    /// The times of each bucket in the last step.
    pub buckets: Vec<BucketTimes>,
}

impl TrainResult {
    /// The result of a run that has not begun, of a model with this many parameters.
    pub(super) fn empty(parameters: usize) -> TrainResult {
        TrainResult {
            losses: Vec::new(),
            test: Evaluation { labels: 0, correct: 0, loss: 0.0 },
            weights_hash: 0,
            parameters,
            samples: 0,
            time: Picos::ZERO,
            breakdown: StepBreakdown::default(),
            buckets: Vec::new(),
        }
    }

    /// Samples per second, over all ranks; 0 where no time passed.
    pub fn throughput(&self) -> f64 {
        if self.time == Picos::ZERO { 0.0 } else { self.samples as f64 / self.time.as_secs() }
    }
}
