//! Observes a run: records its steps and shows its progress.

use super::profile::{ProfileSchedule, RankProfile, by_layer};
use super::stopping::RankStop;
use super::tensorboard::Events;
use super::trained::RankStep;
use super::waiting::WaitCollector;
use allfold_cli::error::CommandError;
use allfold_collectives::Communicator;
use allfold_report::format;
use allfold_sim::Picos;
use allfold_trainer::{Config, EpochReport, Observer, StepReport};
use indicatif::ProgressBar;
use std::sync::MutexGuard;

/// Called after each step of rank 0.
pub type OnStep = Box<dyn FnMut(&StepReport<'_>) + Send>;

/// Records every step and moves the bar.
pub struct Watch<'a> {
    /// The communicator of the rank.
    pub comm: &'a Communicator,
    /// The configuration of the run.
    pub config: &'a Config,
    /// The TensorBoard file of rank 0.
    pub events: Option<MutexGuard<'a, Option<Events>>>,
    /// The progress of rank 0.
    pub bar: Option<&'a ProgressBar>,
    /// Called after each step of rank 0.
    pub on_step: Option<MutexGuard<'a, Option<OnStep>>>,
    /// The steps so far.
    pub steps: Vec<RankStep>,
    /// The step whose buckets are kept; `None`: the last step.
    pub kept: Option<u64>,
    /// Whether spans and the peak of memory are recorded.
    pub spans: bool,
    /// Collects for whom the ranks wait, if that is recorded.
    pub waits: Option<&'a WaitCollector>,
    /// The steps to profile, if any.
    pub schedule: Option<ProfileSchedule>,
    /// The profile so far.
    pub profile: RankProfile,
    /// This rank's part of the agreement on where the run ends after a signal.
    pub stop: Option<RankStop<'a>>,
}

impl Observer for Watch<'_> {
    fn wants_spans(&self) -> bool {
        self.spans || self.waits.is_some() || self.schedule.is_some()
    }

    fn wants_layers(&self, _step: u64) -> bool {
        self.schedule.is_some_and(|schedule| schedule.records(self.steps.len() as u64))
    }

    fn note(&mut self, text: &str) {
        tracing::info!(rank = self.comm.rank().0, "{text}");
    }

    fn step(&mut self, report: &StepReport) {
        let StepReport { step, steps, start, time, lr, memory, peak, .. } = *report;
        // A run with `training.patience` may end after any step that ends an epoch, so each step replaces the one before as the last.
        let may_be_last = self.config.training.patience > 0 || step == steps - 1;
        if self.kept.is_none()
            && self.config.training.patience > 0
            && let Some(before) = self.steps.last_mut()
        {
            (before.buckets, before.spans) = (Vec::new(), Vec::new());
        }
        let kept = self.kept.map_or(may_be_last, |kept| kept == step);
        let (buckets, spans) = match kept {
            true => (report.buckets.to_vec(), report.spans.to_vec()),
            false => (Vec::new(), Vec::new()),
        };
        if self.schedule.is_some_and(|schedule| schedule.profiles(self.steps.len() as u64)) {
            self.profile.add(report);
        }
        self.steps.push(RankStep { start, time, lr, memory, buckets, peak, spans });
        if let Some(waits) = self.waits {
            // Of a step with more than 512 operations the flight recorder has the last 512.
            let operations = self.comm.flight_record(Some(step)).entries;
            waits.hand_in(self.comm.rank().0, step, report.spans, &operations);
        }
        if let Some(bar) = self.bar {
            bar.set_length(report.steps);
            bar.set_position(report.step + 1);
            let rate = self.config.training.batch as f64 * f64::from(self.comm.size())
                / report.time.total().as_secs();
            let message = format!(
                "loss {:.4}, lr {}, {} samples/s",
                report.loss,
                format::number(lr),
                format::rate(rate)
            );
            bar.set_message(message);
        }
        if let Some(on_step) = self.on_step.as_deref_mut().and_then(Option::as_mut) {
            on_step(report);
        }
        self.write_events(report);
    }

    fn stop(&mut self, done: u64) -> allfold_trainer::Result<Option<u64>> {
        self.stop.as_mut().map_or(Ok(None), |stop| stop.after(done, self.config, self.comm))
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.stop.iter_mut().for_each(RankStop::end);
        if let Some(events) = self.events.as_deref_mut().and_then(Option::as_mut) {
            let [loss, accuracy] =
                ["loss", "accuracy"].map(|what| format!("{}/{what}", self.config.scored_on()));
            let values = [
                ("epoch/loss", report.loss),
                (&*loss, report.test.loss),
                (&*accuracy, report.test.accuracy()),
            ];
            let train =
                report.train.map(|train| [("train/loss", train.loss), ("train/accuracy", train.accuracy())]);
            let values = [&values[..], train.as_ref().map_or(&[][..], |train| &train[..])].concat();
            if let Err(failure) = events.scalars(report.steps, &values) {
                self.end_events(&failure);
            }
        }
    }
}

impl Watch<'_> {
    /// Writes a step's numbers for TensorBoard. A file that can no longer be written does not end the run.
    fn write_events(&mut self, report: &StepReport) {
        let profiled = self.profile.steps.last().filter(|last| last.step == report.step).cloned();
        let Some(events) = self.events.as_deref_mut().and_then(Option::as_mut) else { return };
        let (time, memory) = (report.time, report.memory);
        let ms = |part: Picos| part.as_micros() / 1e3;
        let values = [
            ("loss", report.loss),
            ("lr", report.lr),
            ("step_ms/data", ms(time.data)),
            ("step_ms/forward", ms(time.forward)),
            ("step_ms/backward", ms(time.backward)),
            ("step_ms/exposed", ms(time.exposed)),
            ("step_ms/optimiser", ms(time.optimiser)),
            ("bytes/params", memory.params as f64),
            ("bytes/gradients", memory.gradients as f64),
            ("bytes/buffers", memory.buffers as f64),
            ("bytes/activations", memory.activations as f64),
            ("bytes/saved_for_backward", memory.saved_for_backward as f64),
            ("bytes/activation_gradients", memory.activation_gradients as f64),
            ("bytes/optimiser", memory.optimiser as f64),
            ("bytes/buckets", memory.buckets as f64),
        ];
        let scale = report.loss_scale.map(|scale| ("loss_scale", f64::from(scale)));
        let values: Vec<_> = values.into_iter().chain(scale).collect();
        // The layers of a profiled step.
        let layers = profiled
            .map(|step| by_layer(&[RankProfile { names: report.layer_names.to_vec(), steps: vec![step] }]));
        let passes = ["forward", "input_grad", "weight_grad"];
        let times: Vec<(String, f64)> = (layers.iter().flatten())
            .flat_map(|layer| {
                passes.iter().zip(layer.us).map(|(pass, us)| (format!("{pass}_us/{}", layer.name), us))
            })
            .filter(|(_, us)| *us > 0.0)
            .collect();
        let times = times.iter().map(|(name, us)| (&**name, *us));
        let values: Vec<(&str, f64)> = values.into_iter().chain(times).collect();
        if let Err(failure) = events.scalars(report.step, &values) {
            self.end_events(&failure);
        }
    }

    fn end_events(&mut self, failure: &CommandError) {
        tracing::warn!("{failure}; TensorBoard will get no more events of this run");
        if let Some(events) = self.events.as_deref_mut() {
            *events = None;
        }
    }
}
