//! Checkpoints of a run: rank 0 writes and reads them, for all ranks.

use super::TrainResult;
use super::epochs::Progress;
use super::training_rank::{Host, TrainingRank};
use crate::checkpoint::{Files, FolderLock, History, TrainedOn, TrainingProgress, sharded};
use crate::strategies::ddp;
use crate::{Config, EpochReport, Error, GradScaler, Result, checkpoint, scores};
use allfold_collectives::{Communicator, Rank};
use allfold_kernels::nn::Float;
use std::path::Path;

/// The rank that writes and reads checkpoints.
const ROOT: Rank = Rank(0);

/// A run's lock on its folder of checkpoints: on rank 0 of a run that writes checkpoints, otherwise empty.
#[derive(Default)]
pub(super) struct Held {
    lock: Option<FolderLock>,
}

/// What a checkpoint holds of a run, and how it is written and read.
pub(super) struct RunState<'a, F: Float> {
    pub config: &'a Config,
    pub comm: &'a Communicator,
    pub host: Host<F>,
    pub rank: Box<dyn TrainingRank<F> + 'a>,
    pub scaler: Option<GradScaler>,
    /// The lock on the folder of checkpoints.
    pub held: Held,
    /// The samples.
    pub trained_on: TrainedOn,
}

impl<F: Float> RunState<'_, F> {
    /// The error for a value that is not finite after `steps`. Aborts the communicator, so that the other ranks end with this
    /// error too.
    pub(super) fn diverged(
        &self,
        (what, value): (&'static str, f64),
        steps: u64,
        layer: Option<String>,
    ) -> Error {
        let keeps = self.config.checkpoint.writes() || self.config.checkpoint.resume;
        let newest = || checkpoint::latest(Path::new(&self.config.checkpoint.dir)).ok().flatten();
        let (rank, step, checkpoint) = (self.comm.rank(), steps - 1, keeps.then(newest).flatten());
        let error = Error::NotFinite { what, rank, step, value, layer, checkpoint };
        self.comm.abort(error.to_string());
        error
    }

    /// Whether a run of `steps` steps has a checkpoint after `done` steps, not counting checkpoints by epochs.
    pub(super) fn checkpoint_due(&self, done: u64, steps: u64) -> bool {
        let every = self.config.checkpoint.every;
        every > 0 && done.is_multiple_of(every) || self.config.checkpoint.by_time() && done == steps
    }

    /// Writes a checkpoint of what the run has recorded to `files`, on rank 0, whose folder must be the one that it has locked.
    pub(super) fn checkpoint(&mut self, result: &TrainResult, files: Files) -> Result<()> {
        let mut files = files;
        if let Some(lock) = self.held.lock.as_ref().filter(|_| files.step || files.best) {
            lock.check(Path::new(&self.config.checkpoint.dir))?;
        }
        if files.step && self.config.checkpoint.sharded {
            self.write_parts(result)?;
            files.step = false;
        }
        match files.step || files.best {
            true => self.write_whole(result, files),
            false => Ok(()),
        }
    }

    /// Writes a checkpoint of which each rank writes its part. Every rank ends with the error of the first that could not.
    fn write_parts(&mut self, result: &TrainResult) -> Result<()> {
        let (step, ranks) = (result.losses.len() as u64, self.comm.size());
        let part = match self.rank.part(&mut self.host.model.buffers) {
            Some(part) => part?,
            None => {
                // The ranks gather the whole and share the writing.
                self.gather_whole()?;
                let state = self.host.optimiser.state();
                let place = (self.comm.rank().index(), ranks as usize);
                sharded::cut(&self.host.model, &state.vectors, *state.steps, place)
            }
        };
        let own = self.own();
        let weights = own.iter().filter(|(name, _)| *name == "weights").flat_map(|(_, values)| values);
        let mut kept = weights.chain(part.params.values()).chain(&self.host.model.buffers);
        if let Some(bad) = kept.find(|value| !value.to_f64().is_finite()) {
            return Err(self.diverged(("a weight", bad.to_f64()), step, None));
        }
        let (directory, keep) = (Path::new(&self.config.checkpoint.dir), self.config.checkpoint.keep);
        let first = self.comm.rank() == ROOT;
        self.outcome_of_all(if first { sharded::begin(directory, step, keep) } else { Ok(()) })?;
        let run = checkpoint::Snapshot {
            config: self.config,
            data: &self.trained_on,
            step,
            ranks,
            model: &self.host.model,
            scaler: self.scaler.as_ref(),
            losses: &result.losses,
            epochs: &result.epochs,
            own: &own,
        };
        let written = sharded::write(&run, self.comm.rank().index(), &part);
        let all = self.outcome_of_all(written);
        let ended = if first { sharded::end(directory, step, keep, all.is_ok()) } else { Ok(()) };
        self.host.free();
        all.and(self.outcome_of_all(ended))
    }

    /// The outcome of all ranks: every rank gets the error of the first rank that has an error.
    fn outcome_of_all(&self, own: Result<()>) -> Result<()> {
        let said = own.as_ref().err().map(Error::to_string).unwrap_or_default();
        let mut lengths = vec![0i64; self.comm.size() as usize];
        self.comm.all_gather(&[said.len() as i64], &mut lengths)?;
        let Some(first) = lengths.iter().position(|length| *length > 0) else { return own };
        let mut text = said.into_bytes();
        text.resize(lengths[first].unsigned_abs() as usize, 0);
        self.comm.broadcast(&mut text, Rank(first as u32))?;
        Err(Error::Storage(String::from_utf8_lossy(&text).into_owned()))
    }

    /// Gives the host of rank 0, or of all ranks if each writes a part or state of its own, the whole model and optimiser state.
    fn gather_whole(&mut self) -> Result<()> {
        let shared = ddp::replicas_diverge(self.config) || self.config.checkpoint.sharded;
        self.rank.gather(&mut self.host, shared)
    }

    /// Writes a checkpoint into files on rank 0.
    fn write_whole(&mut self, result: &TrainResult, files: Files) -> Result<()> {
        let (losses, epochs) = (&result.losses[..], &result.epochs[..]);
        self.gather_whole()?;
        let mut own = self.own();
        for (_, values) in &mut own {
            let mine = std::mem::take(values);
            values.resize(mine.len() * self.comm.size() as usize, F::ZERO);
            self.comm.all_gather(&mine, values)?;
        }
        if self.comm.rank() == ROOT {
            let weights = own.iter().filter(|(name, _)| *name == "weights").flat_map(|(_, values)| values);
            let mut kept = weights.chain(&self.host.model.params).chain(&self.host.model.buffers);
            if let Some(bad) = kept.find(|value| !value.to_f64().is_finite()) {
                // A checkpoint with such a weight must not replace older, better ones.
                return Err(self.diverged(("a weight", bad.to_f64()), losses.len() as u64, None));
            }
            let run = checkpoint::Snapshot {
                config: self.config,
                data: &self.trained_on,
                step: losses.len() as u64,
                ranks: self.comm.size(),
                model: &self.host.model,
                scaler: self.scaler.as_ref(),
                losses,
                epochs,
                own: &own,
            };
            checkpoint::save(run, &mut *self.host.optimiser, files)?;
        }
        self.host.free();
        Ok(())
    }

    /// The tensors that differ between ranks, by name. Each has the same length on every rank.
    fn own(&mut self) -> checkpoint::Own<F> {
        let mut own = self.rank.hook_state();
        if ddp::replicas_diverge(self.config) {
            own.push(("weights", self.host.model.params.clone()));
            for (name, values) in self.host.optimiser.state().vectors {
                let mut values = values.clone();
                values.resize(self.host.model.params.len(), F::ZERO);
                own.push((name, values));
            }
        }
        own
    }

    /// Stores this rank's part of the state that rank 0 read.
    fn take_own(&mut self, step: u64, mut all: checkpoint::Own<F>) -> Result<()> {
        let ranks = self.comm.size() as usize;
        let mut mine = Vec::with_capacity(all.len());
        for (_, values) in &mut all {
            self.comm.broadcast(values, ROOT)?;
            let length = values.len() / ranks;
            mine.push(values[self.comm.rank().index() * length..][..length].to_vec());
        }
        if ddp::replicas_diverge(self.config) && step > 0 {
            let mut vectors = self.host.optimiser.state().vectors;
            let weights = mine.len() - vectors.len() - 1;
            let values = mine.split_off(weights + 1);
            vectors.iter_mut().zip(values).for_each(|((_, to), values)| **to = values);
            self.host.model.params.copy_from_slice(&mine[weights]);
            mine.truncate(weights);
        }
        if step > 0 {
            self.rank.load_hook_state(&mine);
        }
        Ok(())
    }

    /// Locks the folder of checkpoints on rank 0, if this run writes checkpoints. `None`: another run has locked it.
    fn hold(&self) -> Result<Option<Held>> {
        if !self.config.checkpoint.writes() || self.comm.rank() != ROOT {
            return Ok(Some(Held::default()));
        }
        let lock = FolderLock::take(Path::new(&self.config.checkpoint.dir))?;
        Ok(lock.map(|lock| Held { lock: Some(lock) }))
    }

    /// Refuses to start a new run in a folder with checkpoints of another run (only the checkpoints with the most steps would
    /// be kept, and resumed from), or in the folder of a run that is under way.
    fn begin(&self) -> Result<Held> {
        if !self.config.checkpoint.writes() {
            return Ok(Held::default());
        }
        let folder = Path::new(&self.config.checkpoint.dir);
        let held = self.hold()?;
        let mut taken = [2u8];
        if self.comm.rank() == ROOT && held.is_some() {
            taken[0] =
                u8::from(checkpoint::newest(folder)?.is_some() || folder.join(checkpoint::BEST).exists());
        }
        self.comm.broadcast(&mut taken, ROOT)?;
        match taken {
            [0] => Ok(held.unwrap_or_default()),
            [2] => Err(checkpoint::taken(folder)),
            _ => Err(Error::Config(format!(
                "`checkpoint.dir` {} has checkpoints already: set `checkpoint.resume` to go on from the newest, or name another folder",
                folder.display()
            ))),
        }
    }

    /// Continues from the newest checkpoint, if the configuration requests it and there is one. Rank 0 reads the checkpoint and
    /// broadcasts its contents, or the reason why it is refused, so that every rank ends with that reason. Returns the lock on the
    /// folder, which the run keeps until it ends.
    pub(super) fn resume(&mut self, progress: &mut Progress) -> Result<Held> {
        if !self.config.checkpoint.resume {
            return self.begin();
        }
        let held = self.hold()?;
        let mut own = self.own();
        own.iter_mut()
            .for_each(|(_, values)| *values = vec![F::ZERO; values.len() * self.comm.size() as usize]);
        let read = match &held {
            None => Err(checkpoint::taken(Path::new(&self.config.checkpoint.dir)).to_string()),
            Some(_) => self.read(&mut own)?,
        };
        let mut header = [0i64; 6];
        match &read {
            Ok(Some((TrainingProgress { step, optimiser_steps, loss_scale, good, .. }, history))) => {
                let (scale, epochs) = (i64::from(loss_scale.to_bits()), history.epochs.len() as i64);
                header = [*step as i64, *optimiser_steps as i64, scale, *good as i64, epochs, 0];
            }
            Ok(None) => {}
            Err(refused) => header[5] = refused.len() as i64,
        }
        self.comm.broadcast(&mut header, ROOT)?;
        let [step, optimiser_steps, scale, good, epochs, length] = header.map(i64::unsigned_abs);
        if length > 0 {
            let mut what = read.err().unwrap_or_default().into_bytes();
            what.resize(length as usize, 0);
            self.comm.broadcast(&mut what, ROOT)?;
            return Err(Error::Checkpoint(String::from_utf8_lossy(&what).into_owned()));
        }
        if step > progress.steps {
            return Err(Error::Checkpoint(format!(
                "the newest in {} has {step} steps and this run ends at {}: raise `training.max_steps` or `training.epochs`, or name another folder",
                self.config.checkpoint.dir, progress.steps
            )));
        }
        let history = read.ok().flatten().map(|(_, history)| history).unwrap_or_default();
        self.share_history(history, (step, epochs), progress)?;
        if let Some(scaler) = self.scaler.as_mut().filter(|_| step > 0) {
            (scaler.scale, scaler.good) = (f32::from_bits(scale as u32), good);
        }
        if self.comm.rank() == ROOT {
            self.announce(step, progress.steps);
        }
        self.share_state(optimiser_steps)?;
        self.take_own(step, own)?;
        Ok(held.unwrap_or_default())
    }

    /// Logs where a run of `steps` steps begins: after `done` steps, or at the first step if there is no checkpoint, because it is
    /// the run's first start or because the folder was misspelt.
    fn announce(&self, done: u64, steps: u64) {
        let (folder, left) = (&self.config.checkpoint.dir, steps - done);
        match done {
            0 if self.config.checkpoint.writes() => {
                tracing::info!(
                    rank = 0,
                    "no checkpoint in {folder} (`checkpoint.dir`): the run begins at step 0"
                );
            }
            0 => {
                tracing::warn!(
                    rank = 0,
                    "`checkpoint.resume` finds no checkpoint in {folder} (`checkpoint.dir`), and none is written there: the run begins at \
                     step 0"
                );
            }
            _ => {
                tracing::info!(rank = 0, "resumed from the checkpoint of step {done}; {left} steps are left")
            }
        }
    }

    /// Reads the newest checkpoint, on rank 0, if there is one. The inner error is a reason to refuse the checkpoint, which must be
    /// sent to every rank.
    #[allow(clippy::type_complexity, reason = "a result within a result, used once")]
    fn read(
        &mut self,
        own: &mut checkpoint::Own<F>,
    ) -> Result<std::result::Result<Option<(TrainingProgress, History)>, String>> {
        if self.comm.rank() != ROOT {
            return Ok(Ok(None));
        }
        let into = checkpoint::Restored {
            config: self.config,
            data: &self.trained_on,
            ranks: self.comm.size(),
            model: &mut self.host.model,
            optimiser: &mut *self.host.optimiser,
            own,
        };
        let folder = Path::new(&self.config.checkpoint.dir);
        let latest = checkpoint::latest(folder);
        match latest.and_then(|path| path.map(|path| checkpoint::load(&path, into)).transpose()) {
            Ok(read) => Ok(Ok(read)),
            Err(Error::Checkpoint(what)) => Ok(Err(match checkpoint::way_out(folder) {
                Some(way) => format!("{what}; {way}"),
                None => what,
            })),
            Err(error) => Err(error),
        }
    }

    /// Gives all ranks what rank 0's checkpoint has recorded: of this many steps and epochs.
    fn share_history(&self, read: History, (steps, epochs): (u64, u64), to: &mut Progress) -> Result<()> {
        let History { mut losses, epochs: reports } = read;
        losses.resize(steps as usize, 0.0);
        self.comm.broadcast(&mut losses, ROOT)?;
        let mut rows: Vec<f64> = reports.iter().flat_map(EpochReport::row).collect();
        rows.resize(epochs as usize * scores::COLUMNS, 0.0);
        if !rows.is_empty() {
            self.comm.broadcast(&mut rows, ROOT)?;
        }
        let reports = scores::reports(&rows);
        (to.result.losses, to.result.epochs) = (losses, reports.unwrap_or_default());
        Ok(())
    }

    /// Gives all ranks rank 0's weights, buffers and optimiser state.
    fn share_state(&mut self, optimiser_steps: u64) -> Result<()> {
        self.comm.broadcast(&mut self.host.model.params, ROOT)?;
        self.comm.broadcast(&mut self.host.model.buffers, ROOT)?;
        let state = self.host.optimiser.state();
        *state.steps = optimiser_steps;
        for (_, values) in state.vectors {
            // `values` is empty on rank 0 if the optimiser keeps no state; every rank must know its length before the broadcast.
            let mut length = [values.len() as i64];
            self.comm.broadcast(&mut length, ROOT)?;
            values.resize(length[0].unsigned_abs() as usize, F::ZERO);
            self.comm.broadcast(values, ROOT)?;
        }
        Ok(())
    }
}
