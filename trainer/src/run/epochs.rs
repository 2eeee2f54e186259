//! The epochs of a run: which one is next, whether the run ends early, and an epoch's steps.

use super::report::Line;
use super::training_rank::{Loaded, StepDone};
use super::{Observer, Run, TrainResult};
use crate::data::loader::Batches;
use crate::engine::StepInput;
use crate::{LrSchedule, Result, scores};
use allfold_kernels::nn::Float;

/// How far a run is.
pub(super) struct Progress {
    /// What the run has recorded.
    pub result: TrainResult,
    /// The first losses, which are means over ranks already; the others are this rank's.
    pub shared: usize,
    /// Steps of an epoch.
    pub per_epoch: u64,
    /// Steps of the whole run, if it does not end early.
    pub steps: u64,
    /// The number of steps after which the observer ends the run, once it is known.
    pub stop: Option<u64>,
    /// When the observer gets the losses next.
    pub line: Line,
}

impl Progress {
    /// The number of steps done.
    pub fn done(&self) -> u64 {
        self.result.losses.len() as u64
    }

    /// Whether so many steps are whole epochs.
    pub fn ends_epoch(&self, done: u64) -> bool {
        done.is_multiple_of(self.per_epoch)
    }

    /// The next epoch to train or, if its steps are done, to score; `None` if every step is done and scored.
    fn next(&self) -> Option<u64> {
        let done = self.done();
        let scored = self.result.epochs.last().is_some_and(|last| last.steps == done);
        match scored {
            true => (done < self.steps).then_some(done / self.per_epoch),
            false => Some(done.saturating_sub(1) / self.per_epoch),
        }
    }
}

impl<F: Float> Run<'_, F> {
    /// The next epoch; `None` if the run is at its end, or ends because its scores no longer get better.
    pub(super) fn next_epoch(&self, progress: &mut Progress) -> Option<u64> {
        let next = progress.next()?;
        // An epoch that is done but not scored yet is scored first.
        let begins = progress.done() == next * progress.per_epoch;
        if begins && scores::out_of_patience(self.config, &progress.result.epochs) {
            progress.result.ended_early = true;
            return None;
        }
        Some(next)
    }

    /// Does the steps of an epoch that are left. Returns whether the observer ends the run.
    pub(super) fn train_epoch(
        &mut self,
        batches: &mut Batches<'_, F>,
        epoch: u64,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<bool> {
        let Progress { per_epoch, steps, .. } = *progress;
        let (end, schedule) = (steps.min((epoch + 1) * per_epoch), self.schedule(progress));
        while progress.done() < end {
            let step = progress.done();
            self.comm.note_step(step);
            let steps_left = self.steps_until_sync(step, progress);
            let scale = self.state.scaler.map_or(1.0, |scaler| f64::from(scaler.scale));
            let (lr, loss_scale) = (schedule.at(step), scale);
            let input = StepInput {
                lr,
                loss_scale,
                weight: self.weight(step),
                draw_key: self.draw_key(step),
                steps_left,
            };
            self.state.rank.observe_layers(observer.wants_layers(step));
            let samples = self.sampler.in_step(self.config, step % per_epoch);
            let start = self.comm.now();
            let loaded = Loaded { batches, batch: &mut self.batch };
            let done = self.state.rank.step(loaded, input, samples, self.state.scaler)?;
            let StepDone { loss, time, skipped, not_finite } = done;
            self.not_finite = not_finite;
            self.after_scaled(step, skipped);
            let result = &mut progress.result;
            result.losses.push(loss);
            result.samples += samples;
            result.breakdown += time;
            self.report_step((epoch, step, steps), (loss, lr), (start, time), observer);
            self.finite(&progress.result.losses)?;
            if self.end_step(progress, observer)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// After a step: under a loss scale, changes the scale and adapts the hook's state to it. Rank 0 notes a skipped step.
    fn after_scaled(&mut self, step: u64, skipped: bool) {
        let Some(scaler) = &mut self.state.scaler else { return };
        let before = scaler.scale;
        scaler.update(skipped);
        let (rank, now) = (self.comm.rank().0, scaler.scale);
        match skipped {
            true if rank == 0 => {
                tracing::info!(
                    "step {step} is skipped, since a gradient was not finite: loss scale {before} -> {now}"
                )
            }
            true => tracing::debug!(rank, "step {step} is skipped, since a gradient was not finite"),
            false if now != before => tracing::debug!(rank, "loss scale {before} -> {now}"),
            false => {}
        }
        let by = if now == before { 1.0 } else { f64::from(now) / f64::from(before) };
        self.state.rank.after_scaled(skipped, by);
    }

    /// The learning rates of the steps until the next score.
    fn schedule(&self, progress: &Progress) -> LrSchedule {
        let steps = (self.sampler.scheduled_steps(self.config), progress.per_epoch);
        let ranks = self.data.place.size as u32;
        let by = self.config.training.score;
        let scores: Vec<f64> = progress.result.epochs.iter().map(|epoch| epoch.compared(by)).collect();
        LrSchedule::new(self.config, steps, ranks).after(&scores)
    }
}
