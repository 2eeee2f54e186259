//! Observes a run: records its steps and shows its progress.

use super::tensorboard::Events;
use super::trained::RankStep;
use crate::cli::error::CommandError;
use crate::cli::progress::Lines;
use allfold_collectives::Communicator;
use allfold_sim::Picos;
use allfold_trainer::{Config, EpochReport, Observer, StepReport};
use indicatif::ProgressBar;
use std::io::Write;
use std::sync::MutexGuard;

/// Records every step and moves the bar, or prints lines of progress.
pub struct Watch<'a> {
    pub comm: &'a Communicator,
    pub config: &'a Config,
    pub events: Option<MutexGuard<'a, Option<Events>>>,
    pub bar: Option<&'a ProgressBar>,
    /// Lines of progress, for output on which a bar cannot be seen.
    pub lines: Option<Lines>,
    pub steps: Vec<RankStep>,
    /// The step whose buckets are kept; `None`: the last step.
    pub kept: Option<u64>,
    /// Whether spans and the peak of memory are recorded.
    pub spans: bool,
}

impl Observer for Watch<'_> {
    fn wants_spans(&self) -> bool {
        self.spans
    }

    fn step(&mut self, report: &StepReport) {
        let StepReport { step, steps, time, memory, peak, .. } = *report;
        let kept = self.kept.unwrap_or(steps - 1) == step;
        let (buckets, spans) = match kept {
            true => (report.buckets.to_vec(), report.spans.to_vec()),
            false => (Vec::new(), Vec::new()),
        };
        self.steps.push(RankStep { end: self.comm.now(), time, memory, buckets, peak, spans });
        if let Some(bar) = self.bar {
            bar.set_length(report.steps);
            bar.set_position(report.step + 1);
            let rate = self.config.batch as f64 * f64::from(self.comm.size()) / report.time.total().as_secs();
            let message = format!("loss {:.4}, {rate:.0} samples/s", report.loss);
            if let Some(lines) = &mut self.lines {
                lines.step(report.step, report.steps, &message);
            }
            bar.set_message(message);
        }
        self.note(report);
    }

    fn epoch(&mut self, report: &EpochReport) {
        if let Some(events) = self.events.as_deref_mut().and_then(Option::as_mut) {
            let [loss, accuracy] =
                ["loss", "accuracy"].map(|what| format!("{}/{what}", self.config.scored_on()));
            let values = [
                ("epoch/loss", report.loss),
                (&*loss, report.test.loss),
                (&*accuracy, report.test.accuracy()),
            ];
            if let Err(failure) = events.scalars(report.steps, &values) {
                self.end_events(&failure);
            }
        }
    }
}

impl Watch<'_> {
    /// Writes a step's numbers for TensorBoard. A file that can no longer be written does not end the run.
    fn note(&mut self, report: &StepReport) {
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
        if let Err(failure) = events.scalars(report.step, &values) {
            self.end_events(&failure);
        }
    }

    fn end_events(&mut self, failure: &CommandError) {
        let _ = writeln!(std::io::stderr(), "{failure}; TensorBoard will see no more of this run");
        if let Some(events) = self.events.as_deref_mut() {
            *events = None;
        }
    }
}
