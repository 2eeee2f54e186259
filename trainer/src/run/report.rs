//! The reports of a run: after each step, after each epoch, and at its end.

use super::Run;
use super::training_rank::StepRecords;
use crate::timing::{BucketTimes, LayerSpan, StepBreakdown, StepSpan};
use crate::{EpochReport, Evaluation, MemoryUse, Result};
use allfold_kernels::nn::Float;
use allfold_sim::Picos;

/// When an observer that needs the losses between scores gets them.
#[derive(Default)]
pub(super) struct Line {
    /// After how many steps.
    pub due: u64,
    /// When it got them last, on the rank's clock.
    pub at: Picos,
}

/// The outcome of a step, on this rank.
#[derive(Clone, Copy, Debug)]
pub struct StepReport<'a> {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// The number of the step in the whole run, from 0.
    pub step: u64,
    /// Steps in the whole run.
    pub steps: u64,
    /// The mean loss of this rank's samples.
    pub loss: f64,
    /// When the step began, on the rank's clock.
    pub start: Picos,
    /// The time of this step by parts.
    pub time: StepBreakdown,
    /// The learning rate.
    pub lr: f64,
    /// The loss scale after the step, if the run has one. It is lower than before if the step was skipped.
    pub loss_scale: Option<f32>,
    /// Bytes that this rank holds, by category.
    pub memory: MemoryUse,
    /// The times of each bucket, in the order of sending; empty on GPUs.
    pub buckets: &'a [BucketTimes],
    /// The memory of the rank at the time in this step when it held the most. Without [`Observer::wants_spans`], and on GPUs: the
    /// memory after the step.
    pub peak: MemoryUse,
    /// The rank's work and waiting in order, with [`Observer::wants_spans`]; empty on GPUs.
    pub spans: &'a [StepSpan],
    /// The passes of the rank's layers in order, with [`Observer::wants_layers`]; empty on GPUs.
    pub layers: &'a [LayerSpan],
    /// The names of all layers of the network.
    pub layer_names: &'a [String],
}

/// Receives the reports of a run. `()` ignores them.
pub trait Observer {
    /// Whether the observer needs spans and the peak of memory, whose records cost time.
    fn wants_spans(&self) -> bool {
        false
    }
    /// Whether the observer needs the passes of layers in this step, whose records cost time. Called before the step.
    fn wants_layers(&self, _step: u64) -> bool {
        false
    }
    /// Whether the observer needs the mean losses while an epoch is under way, which takes two exchanges about once a second. Every rank
    /// must answer alike. Workers of a parameter server that may be apart do not exchange them.
    fn wants_losses(&self) -> bool {
        false
    }
    /// Called before the first step, on rank 0 alone, with what a user should know of the run: one line.
    fn note(&mut self, _text: &str) {}
    /// Called after each step.
    fn step(&mut self, _report: &StepReport) {}
    /// Called when the losses from step `first` on have become means over all ranks: of a resumed run with those of its checkpoint, and
    /// before each score and each checkpoint.
    fn losses(&mut self, _first: usize, _so_far: &TrainResult) {}
    /// Called after each step on every rank, with the number of steps done: after how many steps the run ends, with a checkpoint if it
    /// writes any and without a score. `None`: the run does not end early, as far as is known. Every rank must name the same number
    /// before it has done as many steps, and with `parallel.staleness` s when it has done at most s + 1 less.
    ///
    /// # Errors
    /// Ranks that cannot agree.
    fn stop(&mut self, _done: u64) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Called after the evaluation of each epoch.
    fn epoch(&mut self, _report: &EpochReport) {}
}

impl Observer for () {}

/// The outcome of a run. Losses, evaluation and hash are the same on every rank; times are this rank's.
#[derive(Clone, Debug)]
pub struct TrainResult {
    /// The loss of each step, averaged over ranks.
    pub losses: Vec<f64>,
    /// The outcome of each epoch, from the first; of a resumed run, also of those before. Epochs whose scores the checkpoint lacks, as
    /// those of earlier versions do, are missing.
    pub epochs: Vec<EpochReport>,
    /// How many of `epochs` are whole. `training.max_steps` may cut the last one short, which is scored and not in a checkpoint.
    pub whole_epochs: usize,
    /// Whether the run ended because `patience` epochs brought no better score.
    pub ended_early: bool,
    /// The score after the last epoch, on the test set or the samples that `validation` holds out.
    pub test: Evaluation,
    /// A hash of the bits of all parameters and buffers.
    pub weights_hash: u64,
    /// The number of elements of all parameters.
    pub parameters: usize,
    /// The number of training samples that all ranks together processed, with repeated ones.
    pub samples: u64,
    /// The time of all steps, without evaluations.
    pub time: Picos,
    /// The same time, by parts of a step.
    pub breakdown: StepBreakdown,
    /// The path by which ranks on GPUs sum gradients, and why, in words; `None` on CPUs and for a single rank.
    pub exchange: Option<String>,
    /// The times of each bucket in the last step.
    pub buckets: Vec<BucketTimes>,
}

impl TrainResult {
    /// The result of a run that has not begun, of a model with this many parameters.
    pub(super) fn empty(parameters: usize) -> TrainResult {
        TrainResult {
            losses: Vec::new(),
            epochs: Vec::new(),
            whole_epochs: 0,
            ended_early: false,
            test: Evaluation { labels: 0, correct: 0, loss: 0.0 },
            weights_hash: 0,
            parameters,
            samples: 0,
            time: Picos::ZERO,
            breakdown: StepBreakdown::default(),
            exchange: None,
            buckets: Vec::new(),
        }
    }

    /// Samples per second, over all ranks; 0 where no time passed.
    pub fn throughput(&self) -> f64 {
        if self.time == Picos::ZERO { 0.0 } else { self.samples as f64 / self.time.as_secs() }
    }
}

impl<F: Float> Run<'_, F> {
    /// Reports a step to `observer`: its epoch, its number and the number of all steps; its loss and learning rate; its start and
    /// its time.
    pub(super) fn report_step(
        &mut self,
        (epoch, step, steps): (u64, u64, u64),
        (loss, lr): (f64, f64),
        (start, time): (Picos, StepBreakdown),
        observer: &mut dyn Observer,
    ) {
        let memory = self.state.rank.memory();
        let StepRecords { buckets, spans, layers, peak } = self.state.rank.records();
        observer.step(&StepReport {
            epoch,
            step,
            steps,
            loss,
            start,
            time,
            lr,
            loss_scale: self.state.scaler.map(|scaler| scaler.scale),
            memory,
            peak: peak.unwrap_or(memory),
            buckets,
            spans,
            layers,
            layer_names: self.state.host.model.network().names(),
        });
    }
}
