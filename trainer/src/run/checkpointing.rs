//! Checkpoints of a run: rank 0 writes and reads them, for all ranks.

use super::Run;
use crate::checkpoint::TrainingProgress;
use crate::{Error, Result, checkpoint};
use allfold_collectives::Rank;
use allfold_kernels::nn::Float;
use std::path::Path;

/// The rank that writes and reads checkpoints.
const ROOT: Rank = Rank(0);

impl<F: Float> Run<'_, F> {
    pub(super) fn checkpoint_due(&self, done: u64, steps: u64) -> bool {
        let every = self.config.checkpoint_every;
        every > 0 && (done.is_multiple_of(every) || done == steps)
    }

    pub(super) fn checkpoint(&mut self, losses: &[f64]) -> Result<()> {
        if self.engine.is_some() {
            self.download_units()?;
            self.download_state()?;
        } else if self.comm.rank() == ROOT || self.strategy.replicas_diverge() {
            self.download()?;
        }
        let mut own = self.own();
        for (_, values) in &mut own {
            let mine = std::mem::take(values);
            values.resize(mine.len() * self.comm.size() as usize, F::ZERO);
            self.comm.all_gather(&mine, values)?;
        }
        if self.comm.rank() == ROOT {
            let weights = own.iter().filter(|(name, _)| *name == "weights").flat_map(|(_, values)| values);
            let mut kept = weights.chain(&self.model.params).chain(&self.model.buffers);
            if let Some(bad) = kept.find(|value| !value.to_f64().is_finite()) {
                // Older ones are better: this one would take their place.
                return Err(self.diverged(("a weight", bad.to_f64()), losses.len() as u64, None));
            }
            checkpoint::save(checkpoint::Snapshot {
                config: self.config,
                step: losses.len() as u64,
                ranks: self.comm.size(),
                model: &self.model,
                optimiser: &mut *self.optimiser,
                scaler: self.scaler.as_ref(),
                losses,
                own: &own,
            })?;
        }
        self.free_model();
        Ok(())
    }

    /// The tensors that differ between ranks, by name; equally long on every rank.
    fn own(&mut self) -> checkpoint::Own<F> {
        let mut own = self.hook();
        if self.strategy.replicas_diverge() {
            own.push(("weights", self.model.params.clone()));
            for (name, values) in self.optimiser.state().vectors {
                let mut values = values.clone();
                values.resize(self.model.params.len(), F::ZERO);
                own.push((name, values));
            }
        }
        own
    }

    /// Takes this rank's part of what rank 0 read.
    fn take_own(&mut self, step: u64, mut all: checkpoint::Own<F>) -> Result<()> {
        let ranks = self.comm.size() as usize;
        let mut mine = Vec::with_capacity(all.len());
        for (_, values) in &mut all {
            self.comm.broadcast(values, ROOT)?;
            let length = values.len() / ranks;
            mine.push(values[self.comm.rank().index() * length..][..length].to_vec());
        }
        if self.strategy.replicas_diverge() && step > 0 {
            let mut vectors = self.optimiser.state().vectors;
            let weights = mine.len() - vectors.len() - 1;
            let values = mine.split_off(weights + 1);
            vectors.iter_mut().zip(values).for_each(|((_, to), values)| **to = values);
            self.model.params.copy_from_slice(&mine[weights]);
            mine.truncate(weights);
        }
        if step > 0 {
            self.strategy.load_hook_state(step, &mine);
            if let Some(device) = &mut self.device {
                device.load_hook_state(step, &mine);
            }
        }
        Ok(())
    }

    /// Refuses to start a new run in a folder with checkpoints of another run: only the checkpoints with the most steps would
    /// be kept, and resumed from.
    fn begin(&self) -> Result<()> {
        if self.config.checkpoint_every == 0 {
            return Ok(());
        }
        let folder = Path::new(&self.config.checkpoint_dir);
        let mut taken = [0u8];
        if self.comm.rank() == ROOT {
            taken[0] = u8::from(checkpoint::newest(folder)?.is_some());
        }
        self.comm.broadcast(&mut taken, ROOT)?;
        match taken {
            [0] => Ok(()),
            _ => Err(Error::Config(format!(
                "`checkpoint_dir` {} has checkpoints already: set `resume` to go on from the newest, or name another folder",
                folder.display()
            ))),
        }
    }

    /// Goes on from the newest checkpoint, if that is asked for and there is one: rank 0 reads it and gives it to all, or
    /// what is wrong with it, so that no rank ends as if it had only lost another. The run ends after `steps`.
    pub(super) fn resume(&mut self, losses: &mut Vec<f64>, steps: u64) -> Result<()> {
        if !self.config.resume {
            return self.begin();
        }
        let (mut header, mut refused) = ([0i64; 5], String::new());
        let mut own = self.own();
        own.iter_mut()
            .for_each(|(_, values)| *values = vec![F::ZERO; values.len() * self.comm.size() as usize]);
        if self.comm.rank() == ROOT
            && let Some(path) = checkpoint::newest(Path::new(&self.config.checkpoint_dir))?
        {
            let into = checkpoint::Restored {
                config: self.config,
                ranks: self.comm.size(),
                model: &mut self.model,
                optimiser: &mut *self.optimiser,
                own: &mut own,
            };
            match checkpoint::load(&path, into) {
                Ok((TrainingProgress { step, optimiser_steps, loss_scale, good, .. }, read)) => {
                    *losses = read;
                    let scale = i64::from(loss_scale.to_bits());
                    header = [step as i64, optimiser_steps as i64, scale, good as i64, 0];
                }
                Err(Error::Checkpoint(what)) => refused = what,
                Err(error) => return Err(error),
            }
            header[4] = refused.len() as i64;
        }
        self.comm.broadcast(&mut header, ROOT)?;
        let [step, optimiser_steps, scale, good, length] = header.map(i64::unsigned_abs);
        if length > 0 {
            let mut what = refused.into_bytes();
            what.resize(length as usize, 0);
            self.comm.broadcast(&mut what, ROOT)?;
            return Err(Error::Checkpoint(String::from_utf8_lossy(&what).into_owned()));
        }
        if step > steps {
            return Err(Error::Checkpoint(format!(
                "the newest in {} has {step} steps and this run ends at {steps}: raise `max_steps` or `epochs`, or name \
                 another folder",
                self.config.checkpoint_dir
            )));
        }
        losses.resize(step as usize, 0.0);
        self.comm.broadcast(losses, ROOT)?;
        self.comm.broadcast(&mut self.model.params, ROOT)?;
        self.comm.broadcast(&mut self.model.buffers, ROOT)?;
        if let Some(scaler) = self.scaler.as_mut().filter(|_| step > 0) {
            (scaler.scale, scaler.good) = (f32::from_bits(scale as u32), good);
        }
        let state = self.optimiser.state();
        *state.steps = optimiser_steps;
        for (_, values) in state.vectors {
            // Empty on rank 0 where the optimiser keeps none: every rank must know before it takes part.
            let mut length = [values.len() as i64];
            self.comm.broadcast(&mut length, ROOT)?;
            values.resize(length[0].unsigned_abs() as usize, F::ZERO);
            self.comm.broadcast(values, ROOT)?;
        }
        self.take_own(step, own)
    }
}
