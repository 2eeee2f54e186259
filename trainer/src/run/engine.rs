//! A run on the CPU's engine: its step, its evaluations and its checkpoints.

use super::Run;
use crate::costs::data_cost;
use crate::data::loader::Batches;
use crate::engine::{NetworkSplit, StepInput};
use crate::evaluate::{Evaluation, evaluate_first};
use crate::strategies::{self, ddp};
use crate::timing::{StepBreakdown, work};
use crate::{Config, Dataset, Result, SampleForm, models};
use allfold_collectives::Rank;
use allfold_kernels::nn::Float;

/// Checks that the strategy of `config` can train its network, for samples of `shape` with `classes` classes, on `ranks` ranks.
/// Makes no weights and starts no run.
///
/// # Errors
/// What [`strategies::fits`] refuses, and a network that cannot be shared or cut as the strategy needs it.
pub fn fits_network(config: &Config, ranks: u32, samples: SampleForm) -> Result<()> {
    strategies::fits(config, ranks)?;
    for rank in [0, ranks as usize - 1] {
        let plan = strategies::plan(config, rank, ranks)?;
        let network = models::build::<f32>(config, samples)?;
        ddp::fits_network(config, &network)?;
        let (network, _) = NetworkSplit::of(network, &plan.mesh, rank, config.parallel.sequence_parallel)?;
        plan.driver.units(&network.outline())?;
    }
    Ok(())
}

impl<F: Float> Run<'_, F> {
    /// Gives the engine its part of the host's model, and frees the model's memory.
    pub(super) fn upload_units(&mut self) -> Result<()> {
        if let Some(engine) = &mut self.engine {
            engine.upload(&self.model.params, &self.model.buffers, &mut *self.optimiser)?;
            self.free_model();
        }
        Ok(())
    }

    /// Gives the host's model all weights, and from the CPU rank 0's running statistics. Every rank must call it.
    pub(super) fn download_units(&mut self) -> Result<()> {
        match &mut self.engine {
            Some(engine) => engine.download(&mut self.model.params, &mut self.model.buffers),
            None => {
                self.download()?;
                match self.config.mixes_devices() {
                    true => Ok(self.comm.broadcast(&mut self.model.buffers, Rank(0))?),
                    false => Ok(()),
                }
            }
        }
    }

    /// Gives the host's optimiser its whole state. Every rank must call it.
    pub(super) fn download_state(&mut self) -> Result<()> {
        match &mut self.engine {
            Some(engine) => engine.download_state(&mut *self.optimiser),
            None => Ok(()),
        }
    }

    /// Frees the host's model and optimiser state, where an engine holds them.
    pub(super) fn free_model(&mut self) {
        if self.engine.is_some() {
            self.model.free();
            self.optimiser.state().vectors.into_iter().for_each(|(_, values)| *values = Vec::new());
        }
    }

    /// The score of the engine's weights on the first samples of a set.
    pub(super) fn evaluate_units(&mut self, set: (&Dataset, usize)) -> Result<Evaluation> {
        self.download_units()?;
        let score = evaluate_first(&mut self.model, set, self.config.training.batch, self.comm)?;
        self.free_model();
        Ok(score)
    }

    /// Runs one step of the engine, if the run is not on GPUs.
    pub(super) fn engine_step(
        &mut self,
        batches: &mut Batches<F>,
        input: StepInput,
    ) -> Result<Option<(f64, StepBreakdown)>> {
        let Run { engine: Some(engine), comm, batch, scaler, .. } = self else { return Ok(None) };
        let start = comm.now();
        batches.next(batch)?;
        comm.charge(&work(data_cost::<F>(batch.x.len())));
        let data = comm.now() - start;
        let report = engine.step(batch, input, *scaler)?;
        if let Some(scaler) = scaler {
            scaler.update(report.skipped);
        }
        self.not_finite = report.not_finite;
        let all = self.comm.now() - start;
        let parts = data + report.forward + report.exposed + report.optimiser;
        let backward = allfold_sim::Picos(all.0.saturating_sub(parts.0));
        let (forward, exposed, optimiser) = (report.forward, report.exposed, report.optimiser);
        Ok(Some((report.loss, StepBreakdown { data, forward, backward, exposed, optimiser })))
    }
}
