//! A run whose numbers are in an engine's units: what a step, an evaluation and a checkpoint take of it.

use super::Run;
use crate::data::loader::Batches;
use crate::engine::{AxisPosition, Mesh, MeshAxis, NetworkSplit, RankEngine, StepInput, Worker};
use crate::evaluate::{Evaluation, evaluate};
use crate::strategies::{self, Driver};
use crate::timing::{StepBreakdown, work};
use crate::{Config, Dataset, Network, Result, models};
use allfold_collectives::Communicator;
use allfold_kernels::nn::Float;

/// Checks that the strategy of `config` takes its network on this number of ranks, without weights and without a run.
///
/// # Errors
/// What [`strategies::fits`] refuses, and a network that cannot be shared or cut as the strategy needs it.
pub fn fits_network(config: &Config, ranks: u32, data: &Dataset) -> Result<()> {
    strategies::fits(config, ranks)?;
    if !strategies::on_engine(config) {
        return Ok(());
    }
    for rank in [0, ranks as usize - 1] {
        let plan = strategies::plan(config, rank, ranks)?;
        let network = models::build::<f32>(config, data.shape, data.classes)?;
        let (network, _) = NetworkSplit::of(network, &plan.mesh, rank)?;
        plan.driver.units(&network.outline())?;
    }
    Ok(())
}

/// A rank of a strategy of the engine.
pub(super) struct EngineRun<'a, F: Float> {
    worker: Worker<'a, F>,
    driver: Box<dyn Driver>,
}

impl<'a, F: Float> EngineRun<'a, F> {
    /// A rank of `comm` that trains `network` as `config` says, without weights yet.
    pub fn new(config: &'a Config, network: Network<F>, comm: &'a Communicator) -> Result<EngineRun<'a, F>> {
        let plan = strategies::plan(config, comm.rank().index(), comm.size())?;
        let (network, split) = NetworkSplit::of(network, &plan.mesh, comm.rank().index())?;
        let units = plan.driver.units(&network.outline())?;
        let worker = Worker::new(config, (network, split), units, comm, (plan.mesh, plan.channels))?;
        Ok(EngineRun { worker, driver: plan.driver })
    }

    /// The exchanges of gradients in the last step.
    pub fn log(&self) -> &[crate::timing::BucketTimes] {
        self.worker.log()
    }

    /// Records from now on, or no more, what [`EngineRun::spans`] and [`EngineRun::peak`] tell.
    pub fn observe(&mut self, wanted: bool) {
        self.worker.observe(wanted);
    }

    /// The work and the waiting of the last step, in order.
    pub fn spans(&self) -> &[crate::timing::StepSpan] {
        self.worker.spans()
    }

    /// The memory when this rank held the most in the last step, if it was recorded.
    pub fn peak(&self) -> Option<crate::MemoryUse> {
        Some(self.worker.peak()).filter(|peak| peak.total() > 0)
    }
}

/// A rank's place among those with samples of their own, and the weight of its losses.
pub(super) struct DataPlace {
    /// This rank's place among the ranks with samples of their own; ranks that share the positions of samples have one place.
    pub place: AxisPosition,
    /// The number by which this rank's random draws differ from others'.
    pub draws: u16,
    /// Whether this rank is given the samples of the whole axis.
    pub takes_all: bool,
    /// Whether this rank is given no samples.
    pub takes_none: bool,
    /// The weight of this rank's loss in the mean over all ranks.
    pub weight: f64,
}

impl DataPlace {
    /// The place of this rank of `comm`.
    pub fn of(config: &Config, comm: &Communicator) -> Result<DataPlace> {
        let mesh: Mesh = strategies::mesh(config, comm.size())?;
        let [place, stage, tensor] = [MeshAxis::Data, MeshAxis::Pipeline, MeshAxis::Tensor]
            .map(|axis| mesh.position(comm.rank().index(), axis));
        let first_trains = config.strategy == "data_parallel";
        let takes_none = mesh.is_server(comm.rank().index());
        let weight = match first_trains {
            _ if takes_none => 0.0,
            true => f64::from(u8::from(place.index == 0)),
            false => f64::from(u8::from(stage.index == 0 && tensor.index == 0)) / place.size as f64,
        };
        let takes_all = first_trains && place.index == 0;
        let draws = place.index as u16;
        let place = AxisPosition { index: place.index / mesh.context, size: place.size / mesh.context };
        Ok(DataPlace { place, draws, takes_all, takes_none, weight })
    }
}

impl<F: Float> Run<'_, F> {
    /// Gives the engine its part of the host's model, and frees the model's memory.
    pub(super) fn upload_units(&mut self) -> Result<()> {
        if let Some(engine) = &mut self.engine {
            engine.worker.upload(&self.model.params, &self.model.buffers, &mut *self.optimiser)?;
            self.free_model();
        }
        Ok(())
    }

    /// Gives the host's model all weights. Every rank must call it.
    pub(super) fn download_units(&mut self) -> Result<()> {
        match &mut self.engine {
            Some(EngineRun { worker, .. }) => {
                let downloaded = worker.download(&mut self.model.params, &mut self.model.buffers);
                downloaded.map_err(|error| worker.failed(error))
            }
            None => Ok(()),
        }
    }

    /// Gives the host's optimiser its whole state. Every rank must call it.
    pub(super) fn download_state(&mut self) -> Result<()> {
        match &mut self.engine {
            Some(EngineRun { worker, .. }) => {
                worker.download_state(&mut *self.optimiser).map_err(|error| worker.failed(error))
            }
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

    /// The memory that this rank holds now; `None` where the strategy trains a [`Model`](crate::Model).
    pub(super) fn engine_memory(&mut self) -> Option<crate::MemoryUse> {
        Some(self.engine.as_mut()?.worker.memory())
    }

    /// The score of the engine's weights.
    pub(super) fn evaluate_units(&mut self) -> Result<Evaluation> {
        self.download_units()?;
        let score = evaluate(&mut self.model, self.test, self.config.batch, self.comm)?;
        self.free_model();
        Ok(score)
    }

    /// One step of the engine, if the strategy is the engine's.
    pub(super) fn engine_step(
        &mut self,
        batches: &mut Batches<F>,
        lr: f64,
        steps_left: u64,
    ) -> Result<Option<(f64, StepBreakdown)>> {
        let Run { engine: Some(engine), comm, batch, model, scaler, .. } = self else { return Ok(None) };
        let start = comm.now();
        batches.next(batch)?;
        comm.charge(&work(super::data_cost::<F>(batch.x.len())));
        let data = comm.now() - start;
        let loss_scale = scaler.map_or(1.0, |scaler| f64::from(scaler.scale));
        let input = StepInput { lr, loss_scale, draw_key: model.draw_key, steps_left };
        let EngineRun { worker, driver } = engine;
        worker.begin(std::mem::take(batch), input, *scaler);
        driver.step(worker as &mut dyn RankEngine).map_err(|error| worker.failed(error))?;
        *batch = worker.take_batch();
        let report = worker.report();
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
