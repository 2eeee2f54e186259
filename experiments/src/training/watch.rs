//! Observes a run: records its steps and shows its progress.

use super::profile::{ProfileSchedule, RankProfile, by_layer};
use super::records::SoFar;
use super::stopping::RankStop;
use super::tensorboard::Events;
use super::trained::RankStep;
use super::waiting::WaitCollector;
use allfold_collectives::Communicator;
use allfold_report::format;
use allfold_sim::Picos;
use allfold_trainer::{Config, EpochReport, Observer, StepReport, TrainResult};
use indicatif::ProgressBar;
use std::sync::MutexGuard;

/// What happens on rank 0 in a run.
pub enum RunEvent<'a> {
    /// A step is done.
    Step(&'a StepReport<'a>),
    /// The losses of all steps so far are means over the ranks.
    Losses(&'a SoFar<'a>),
}

/// Called with the events of a run.
pub type Follow = Box<dyn FnMut(RunEvent<'_>) + Send>;

/// Records every step and moves the bar.
pub struct Watch<'a> {
    /// The communicator of the rank.
    pub comm: &'a Communicator,
    /// The configuration of the run.
    pub config: &'a Config,
    /// The TensorBoard file of rank 0.
    pub events: Option<MutexGuard<'a, Option<Events>>>,
    /// The progress of rank 0, and the last step whose loss over all ranks is known, with this loss.
    pub bar: Option<(&'a ProgressBar, Option<(u64, f64)>)>,
    /// Called with the events of rank 0.
    pub follow: Option<MutexGuard<'a, Option<Follow>>>,
    /// Whether the losses are needed before the end of an epoch.
    pub losses: bool,
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

    fn wants_losses(&self) -> bool {
        self.losses
    }

    fn losses(&mut self, first: usize, result: &TrainResult) {
        let (config, made, waits) = (self.config, &self.steps[..], self.waits);
        let waiting = |step| waits.and_then(|waits| waits.of(step));
        if let Some(follow) = self.follow.as_deref_mut().and_then(Option::as_mut) {
            follow(RunEvent::Losses(&SoFar { config, result, made, waiting: &waiting }));
        }
        // Another run has written the losses of a checkpoint.
        let own = if made.is_empty() { result.losses.len() } else { first };
        for (step, loss) in (own as u64..).zip(&result.losses[own..]) {
            self.write_event(step, &[("loss", *loss)]);
            self.bar.iter_mut().for_each(|(_, known)| *known = Some((step, *loss)));
        }
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
        if let Some((bar, known)) = self.bar {
            bar.set_length(report.steps);
            bar.set_position(report.step + 1);
            let rate = self.config.training.batch as f64 * f64::from(self.comm.size())
                / report.time.total().as_secs();
            let loss = known.map(|(step, loss)| format!("loss {loss:.4} in step {step}, "));
            let (loss, lr) = (loss.unwrap_or_default(), format::number(lr));
            bar.set_message(format!("{loss}lr {lr}, {} samples/s", format::rate(rate)));
        }
        if let Some(follow) = self.follow.as_deref_mut().and_then(Option::as_mut) {
            follow(RunEvent::Step(report));
        }
        self.write_events(report);
    }

    fn stop(&mut self, done: u64) -> allfold_trainer::Result<Option<u64>> {
        self.stop.as_mut().map_or(Ok(None), |stop| stop.after(done, self.config, self.comm))
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.stop.iter_mut().for_each(RankStop::end);
        let [loss, accuracy] = ["loss", "accuracy"].map(|what| format!("{}/{what}", self.config.scored_on()));
        let values =
            [("epoch/loss", report.loss), (&*loss, report.test.loss), (&*accuracy, report.test.accuracy())];
        let train =
            report.train.map(|train| [("train/loss", train.loss), ("train/accuracy", train.accuracy())]);
        let values = [&values[..], train.as_ref().map_or(&[][..], |train| &train[..])].concat();
        self.write_event(report.steps.saturating_sub(1), &values);
    }
}

impl Watch<'_> {
    /// Writes a step's numbers for TensorBoard. A file that can no longer be written does not end the run.
    fn write_events(&mut self, report: &StepReport) {
        let profiled = self.profile.steps.last().filter(|last| last.step == report.step).cloned();
        if self.events.as_ref().is_none_or(|events| events.is_none()) {
            return;
        }
        let (time, memory) = (report.time, report.memory);
        let ms = |part: Picos| part.as_micros() / 1e3;
        let values = [
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
        self.write_event(report.step, &values);
    }

    /// Writes values of one step for TensorBoard, if it gets any.
    fn write_event(&mut self, step: u64, values: &[(&str, f64)]) {
        let Some(events) = self.events.as_deref_mut() else { return };
        let written = events.as_mut().map_or(Ok(()), |events| events.scalars(step, values));
        if let Err(failure) = written {
            tracing::warn!("{failure}; TensorBoard will get no more events of this run");
            *events = None;
        }
    }
}
