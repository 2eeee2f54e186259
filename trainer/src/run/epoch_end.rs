//! The ends of steps and of epochs: the score of an epoch, and the checkpoints that are due.
//!
//! ```text
//! epoch:  [ step ... checkpoint by steps ... step ]  ->  settle -> score -> checkpoints (newest, best) -> next epoch, or the end
//! ```

use super::epochs::Progress;
use super::{Observer, Run};
use crate::checkpoint::Files;
use crate::scores::{self, COLUMNS};
use crate::{Dataset, EpochReport, Error, Evaluation, Result};
use allfold_collectives::Rank;
use allfold_kernels::nn::Float;

/// The rank whose score of an epoch all ranks decide by.
const ROOT: Rank = Rank(0);

impl<F: Float> Run<'_, F> {
    /// Refuses keys that need scores if there is nothing to score on.
    pub(super) fn can_score(&self) -> Result<()> {
        if self.config.compares_scores() && self.test.is_empty() {
            return Err(Error::Config(
                "`training.patience`, `checkpoint.best` and lr_schedule `plateau` compare scores, and the test set is empty: set `data.validation`"
                    .into(),
            ));
        }
        Ok(())
    }

    /// The number of steps from `step` on, with `step` itself, until all ranks synchronise: for an evaluation or a checkpoint.
    pub(super) fn steps_until_sync(&self, step: u64, progress: &Progress) -> u64 {
        let meets = |done: &u64| {
            let stops = progress.stop == Some(*done);
            stops || progress.ends_epoch(*done) || self.state.checkpoint_due(*done, progress.steps)
        };
        (step + 1..progress.steps).find(meets).unwrap_or(progress.steps) - step
    }

    /// Writes the checkpoint that is due after a step. Returns whether the observer ends the run.
    pub(super) fn end_step(&mut self, progress: &mut Progress, observer: &mut dyn Observer) -> Result<bool> {
        let done = progress.done();
        progress.stop = observer.stop(done)?;
        let stops = progress.stop.is_some_and(|stop| stop <= done);
        // The checkpoint at the end of an epoch is written after its evaluation, with its score.
        let due = self.state.checkpoint_due(done, progress.steps) && !progress.ends_epoch(done);
        let saves = due || stops && self.config.checkpoint.writes();
        let apart = self.config.parallel.staleness > 0;
        if saves || stops || observer.wants_losses() && done >= progress.line.due && !apart {
            self.share(progress, observer)?;
        }
        if saves {
            self.state.checkpoint(&progress.result, Files { step: true, best: false })?;
        }
        if stops {
            // A launcher may end all ranks once one has left.
            self.comm.barrier()?;
        }
        Ok(stops)
    }

    /// The score on the first samples of a set after `steps` steps. If the loss is not finite, the last step has ruined the weights, and
    /// the run fails.
    fn evaluate(&mut self, set: (&Dataset, usize), steps: u64) -> Result<Evaluation> {
        let score = self.state.rank.evaluate(&mut self.state.host, set)?;
        match score.loss.is_finite() {
            true => Ok(score),
            false => Err(self.state.diverged(("the test loss", score.loss), steps, None)),
        }
    }

    /// Scores the weights after an epoch, reports the epoch, and writes the checkpoints that are due then.
    pub(super) fn end_epoch(
        &mut self,
        epoch: u64,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.share(progress, observer)?;
        let losses = &progress.result.losses[(epoch * progress.per_epoch) as usize..];
        let loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        self.state.rank.settle(&mut self.state.host)?;
        let steps = progress.done();
        let test = self.evaluate((self.test, self.test.len()), steps)?;
        let trained = (self.train, self.sampler.samples);
        let train = self.config.training.score_train.then(|| self.evaluate(trained, steps)).transpose()?;
        let report = self.agree(EpochReport { epoch, steps, loss, test, train })?;
        observer.epoch(&report);
        progress.result.epochs.push(report);
        // An epoch that `training.max_steps` cuts short is not in a checkpoint: a longer run would not have scored there.
        if progress.ends_epoch(steps) {
            let files = self.files_due(epoch, progress);
            if files.step || files.best {
                self.state.checkpoint(&progress.result, files)?;
            }
        }
        Ok(())
    }

    /// The files of the checkpoint that are due at the end of a whole epoch.
    fn files_due(&self, epoch: u64, progress: &Progress) -> Files {
        let (config, epochs) = (self.config, &progress.result.epochs);
        let every = config.checkpoint.every_epochs;
        Files {
            step: self.state.checkpoint_due(progress.done(), progress.steps)
                || every > 0 && (epoch + 1).is_multiple_of(every)
                || config.checkpoint.by_time() && scores::out_of_patience(config, epochs),
            best: config.checkpoint.best
                && scores::best(config.training.score, epochs) == Some(epochs.len() - 1),
        }
    }

    /// Rank 0's report of an epoch, if the run decides anything by the report. Every rank has the sums of all ranks, but a
    /// communicator may sum in another order on another rank (MPI leaves that open), and a rank that alone ended its run would leave
    /// the others waiting.
    fn agree(&self, report: EpochReport) -> Result<EpochReport> {
        if !self.config.compares_scores() {
            return Ok(report);
        }
        let mut row: [f64; COLUMNS] = report.row();
        self.comm.broadcast(&mut row, ROOT)?;
        EpochReport::of_row(&row)
            .ok_or_else(|| Error::Replicas("rank 0 sent the score of an epoch that is not one".into()))
    }
}
