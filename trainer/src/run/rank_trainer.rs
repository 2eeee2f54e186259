//! One rank of a strategy, step by step: for a run, and for programs with a training loop of their own.

use super::consensus::{begin_alike, same_layout};
use super::training_rank::{Host, Loaded, StepDone, StepRecords, TrainingRank};
use crate::checkpoint::Own;
use crate::checkpoint::sharded::Part;
use crate::costs::data_cost;
use crate::engine::{Bucketing, NetworkSplit, RankEngine, StepInput, StepResult, Worker};
use crate::evaluate::{Evaluation, evaluate_first};
use crate::strategies::{self, Driver, ddp};
use crate::timing::{BucketTimes, StepBreakdown, work};
use crate::{Batch, Config, Dataset, GradScaler, MemoryUse, Model, Network, Optimiser, Result, optim};
use allfold_collectives::Communicator;
use allfold_kernels::nn::Float;
use allfold_sim::Picos;

/// A rank that trains on the CPU by the strategy of its configuration.
pub struct RankTrainer<'a, F: Float> {
    comm: &'a Communicator,
    config: &'a Config,
    worker: Worker<'a, F>,
    driver: Box<dyn Driver>,
}

impl<'a, F: Float> RankTrainer<'a, F> {
    /// A rank of `comm` that trains `network` as `config` says, without weights yet. Every rank must call it.
    ///
    /// # Errors
    /// A network or a number of ranks that the strategy does not take; ranks with different networks; failed communication.
    pub fn new(config: &'a Config, network: Network<F>, comm: &'a Communicator) -> Result<Self> {
        let (rank, plan) = (comm.rank().index(), strategies::plan(config, comm.rank().index(), comm.size())?);
        ddp::fits_network(config, &network)?;
        same_layout(comm, &network)?;
        let (network, split) =
            NetworkSplit::of(network, &plan.mesh, rank, config.parallel.sequence_parallel)?;
        let units = plan.driver.units(&network.outline())?;
        let worker = Worker::new(config, (network, split), units, comm, (plan.mesh, plan.channels))?;
        let mut own = RankTrainer { comm, config, worker, driver: plan.driver };
        own.driver.start(&mut own.worker)?;
        Ok(own)
    }

    /// Begins with rank 0's parameters and buffers, which it copies into `model`, and a new optimiser. Every rank must call it.
    ///
    /// # Errors
    /// Failed communication.
    pub fn start(&mut self, model: &mut Model<F>) -> Result<()> {
        begin_alike(self.comm, model)?;
        let mut optimiser = optim::build(self.config, model.network().params())?;
        self.upload(&model.params, &model.buffers, &mut *optimiser)
    }

    /// Copies the parts that this rank keeps from a whole model's parameters, buffers and optimiser state.
    ///
    /// # Errors
    /// None at present.
    pub fn upload(&mut self, params: &[F], buffers: &[F], optimiser: &mut dyn Optimiser<F>) -> Result<()> {
        self.worker.upload(params, buffers, optimiser)
    }

    /// One step over this rank's samples.
    ///
    /// # Errors
    /// A batch that is too small for a layer's normalisation, or failed communication. No rank can do another step then.
    pub fn step(
        &mut self,
        batch: &mut Batch<F>,
        input: StepInput,
        scaler: Option<GradScaler>,
    ) -> Result<StepResult> {
        self.worker.begin(std::mem::take(batch), input, scaler);
        let done = self.driver.step(&mut self.worker as &mut dyn RankEngine);
        *batch = std::mem::take(&mut self.worker.task.batch);
        done.map_err(|error| self.worker.failed(error))?;
        Ok(self.worker.report())
    }

    /// Gives every rank all parameters and buffers; running statistics are those of the first rank of each data axis. Every rank
    /// must call it.
    ///
    /// # Errors
    /// Failed communication.
    pub fn download(&mut self, params: &mut Vec<F>, buffers: &mut Vec<F>) -> Result<()> {
        let downloaded = self.worker.download(params, buffers);
        downloaded.map_err(|error| self.worker.failed(error))
    }

    /// Gives every rank the whole optimiser state: its own, if every rank keeps the whole. Every rank must call it.
    ///
    /// # Errors
    /// Failed communication.
    pub fn download_state(&mut self, optimiser: &mut dyn Optimiser<F>) -> Result<()> {
        let downloaded = self.worker.download_state(optimiser);
        downloaded.map_err(|error| self.worker.failed(error))
    }

    /// The gradients of the last step in the layout of the parameters: unscaled and clipped, and 0 for parameters that are not
    /// trained.
    ///
    /// # Errors
    /// If this rank keeps only a part of the gradients.
    pub fn gradients(&self) -> Result<Vec<F>> {
        self.worker.gradients()
    }

    /// Running statistics and other buffers of this rank.
    pub fn buffers(&self) -> &[F] {
        &self.worker.buffers
    }

    /// The exchanges of gradients in the last step.
    pub fn buckets(&self) -> &[BucketTimes] {
        &self.worker.observed.log
    }

    /// The parameters that are trained but that the loss does not depend on.
    pub fn unused(&self) -> Vec<usize> {
        self.worker.unreached()
    }

    /// The memory that this rank holds now.
    pub fn memory(&mut self) -> MemoryUse {
        self.worker.memory()
    }

    /// Turns the record of [`RankTrainer::peak`] on or off, and that of spans.
    pub fn observe(&mut self, wanted: bool) {
        self.worker.observed.wanted = wanted;
    }

    /// The memory of this rank at the time in the last step when it held the most, if it was recorded.
    pub fn peak(&self) -> Option<MemoryUse> {
        Some(self.worker.observed.peak).filter(|peak| peak.total() > 0)
    }
}

impl<F: Float> TrainingRank<F> for RankTrainer<'_, F> {
    fn upload(&mut self, host: &mut Host<F>) -> Result<()> {
        self.worker.upload(&host.model.params, &host.model.buffers, &mut *host.optimiser)?;
        host.free();
        Ok(())
    }

    fn download(&mut self, host: &mut Host<F>) -> Result<()> {
        RankTrainer::download(self, &mut host.model.params, &mut host.model.buffers)
    }

    fn gather(&mut self, host: &mut Host<F>, _: bool) -> Result<()> {
        TrainingRank::download(self, host)?;
        self.download_state(&mut *host.optimiser)
    }

    /// `None` on ranks whose weights differ, which write all weights as their own state, and on those that share a run with GPUs.
    fn part(&mut self, buffers: &mut Vec<F>) -> Option<Result<Part<F>>> {
        let gathers = self.config.mixes_devices() || ddp::replicas_diverge(self.config);
        (!gathers).then(|| self.worker.part(buffers).map_err(|error| self.worker.failed(error)))
    }

    fn step(
        &mut self,
        Loaded { batches, batch, .. }: Loaded<'_, '_, F>,
        input: StepInput,
        _: u64,
        scaler: Option<GradScaler>,
    ) -> Result<StepDone> {
        let (comm, start) = (self.comm, self.comm.now());
        batches.next(batch)?;
        comm.charge(&work(data_cost::<F>(batch.x.len())));
        let data = comm.now() - start;
        let StepResult { loss, skipped, not_finite, forward, exposed, optimiser, .. } =
            RankTrainer::step(self, batch, input, scaler)?;
        let backward = (comm.now() - start).0.saturating_sub((data + forward + exposed + optimiser).0);
        let time = StepBreakdown { data, forward, backward: Picos(backward), exposed, optimiser };
        let unnamed = || (!loss.is_finite()).then(|| "the loss".into());
        Ok(StepDone { loss, time, skipped, not_finite: not_finite.or_else(unnamed) })
    }

    fn settle(&mut self, _: &mut Host<F>) -> Result<()> {
        self.worker.settle()
    }

    fn evaluate(&mut self, host: &mut Host<F>, set: (&Dataset, usize)) -> Result<Evaluation> {
        TrainingRank::download(self, host)?;
        let score = evaluate_first(&mut host.model, set, self.config.training.batch, self.comm)?;
        host.free();
        Ok(score)
    }

    fn hook_state(&mut self) -> Own<F> {
        self.worker.hook_state()
    }

    fn load_hook_state(&mut self, values: &[Vec<F>]) {
        self.worker.load_hook_state(values);
    }

    fn after_scaled(&mut self, skipped: bool, by: f64) {
        self.worker.after_scaled(skipped, F::from_f64(by));
    }

    fn memory(&mut self) -> MemoryUse {
        RankTrainer::memory(self)
    }

    fn observe(&mut self, wanted: bool) {
        RankTrainer::observe(self, wanted);
    }

    fn observe_layers(&mut self, wanted: bool) {
        self.worker.observed.layers_wanted = wanted;
    }

    fn records(&self) -> StepRecords<'_> {
        StepRecords {
            buckets: self.buckets(),
            spans: &self.worker.observed.spans,
            layers: &self.worker.observed.layers,
            peak: self.peak(),
        }
    }
}
