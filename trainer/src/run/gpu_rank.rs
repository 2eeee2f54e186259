//! A run's rank on a GPU.

use super::consensus::same_layout;
use super::training_rank::{Host, Loaded, StepDone, TrainingRank};
use crate::checkpoint::Own;
use crate::checkpoint::sharded::Part;
use crate::cuda::{self, CudaMachine, Replica, Within};
use crate::engine::StepInput;
use crate::evaluate::{Evaluation, evaluate_by};
use crate::strategies::ddp;
use crate::timing::StepBreakdown;
use crate::{Config, Dataset, GradScaler, MemoryUse, Result, SampleForm, models};
use allfold_collectives::{Communicator, Joining, Rank, ReduceOp};
use allfold_kernels::nn::Float;
use std::sync::Arc;

/// A rank of a run, with its model on a GPU.
pub(super) struct GpuRank<'a> {
    config: &'a Config,
    comm: &'a Communicator,
    replica: Replica<'a>,
}

impl<'a> GpuRank<'a> {
    /// A rank of `comm` on a device of `machine`.
    pub fn new(
        config: &'a Config,
        samples: SampleForm,
        comm: &'a Communicator,
        machine: Arc<dyn CudaMachine>,
    ) -> Result<Self> {
        let device = cuda::device_of(config, comm, &*machine)?;
        let network = models::build(config, samples)?;
        same_layout(comm, &network)?;
        // A quarter of the time that ALLFOLD_TIMEOUT gives is left for finding out which rank is late.
        let deadline = Joining::deadlines_from_env()?.operation * 3 / 4;
        let replica = Replica::of(config, network, comm, Within { machine, device, deadline })?;
        Ok(GpuRank { config, comm, replica })
    }

    /// Copies the device's weights, running statistics and optimiser state to the host.
    fn fetch<F: Float>(&mut self, host: &mut Host<F>) -> Result<()> {
        let Host { model, optimiser } = host;
        model.allocate();
        self.replica.download(&mut model.params, &mut model.buffers, &mut **optimiser)
    }
}

impl<F: Float> TrainingRank<F> for GpuRank<'_> {
    fn upload(&mut self, host: &mut Host<F>) -> Result<()> {
        self.replica.upload(&host.model.params, &host.model.buffers, &mut *host.optimiser)?;
        host.free();
        Ok(())
    }

    fn download(&mut self, host: &mut Host<F>) -> Result<()> {
        self.fetch(host)?;
        match self.config.mixes_devices() {
            true => Ok(self.comm.broadcast(&mut host.model.buffers, Rank(0))?),
            false => Ok(()),
        }
    }

    fn gather(&mut self, host: &mut Host<F>, shared: bool) -> Result<()> {
        match self.config.mixes_devices() {
            true => self.download(host),
            false if shared || self.replica.is_sharded() || self.comm.rank() == Rank(0) => self.fetch(host),
            false => Ok(()),
        }
    }

    /// `None`: a device has a layout of its own.
    fn part(&mut self, _: &mut Vec<F>) -> Option<Result<Part<F>>> {
        None
    }

    /// While the device computes, the next batch is copied to it. Forward pass, backward pass and optimiser are one piece of work for
    /// the host: their time counts as backward's.
    fn step(
        &mut self,
        Loaded { batches, batch, ahead }: Loaded<'_, '_, F>,
        input: StepInput,
        everywhere: u64,
        scaler: Option<GradScaler>,
    ) -> Result<StepDone> {
        let GpuRank { replica, comm, .. } = self;
        let start = comm.now();
        if !replica.is_staged() {
            batches.next(batch)?;
            replica.stage(batch)?;
        }
        let gathered = comm.now();
        let samples = replica.start(input, everywhere, scaler.is_some())?;
        // The first batch of the next epoch is staged after the evaluation.
        if ahead && batches.more() {
            batches.next(batch)?;
            replica.stage(batch)?;
        }
        let done = replica.finish(samples)?;
        let (data, backward) = (gathered - start, comm.now() - gathered);
        let time = StepBreakdown { data, backward, ..StepBreakdown::default() };
        Ok(StepDone { loss: done.loss, time, skipped: done.skipped, not_finite: None })
    }

    /// Also gives every rank rank 0's running statistics. If other ranks compute on the CPU, each evaluation does.
    fn settle(&mut self, host: &mut Host<F>) -> Result<()> {
        if !ddp::replicas_diverge(self.config) {
            return if self.config.mixes_devices() { Ok(()) } else { self.replica.share_statistics() };
        }
        self.fetch(host)?;
        self.comm.all_reduce(&mut host.model.params, ReduceOp::Avg)?;
        self.comm.broadcast(&mut host.model.buffers, Rank(0))?;
        self.upload(host)
    }

    fn evaluate(&mut self, _: &mut Host<F>, set: (&Dataset, usize)) -> Result<Evaluation> {
        let GpuRank { config, comm, replica } = self;
        if config.mixes_devices() {
            replica.share_statistics()?;
        }
        replica.open()?;
        let place = (*comm, replica.evaluates());
        let score = evaluate_by::<F>(set, config.training.batch, place, |samples| replica.evaluate(samples))?;
        replica.close()?;
        Ok(score)
    }

    fn hook_state(&mut self) -> Own<F> {
        self.replica.hook_state()
    }

    fn load_hook_state(&mut self, values: &[Vec<F>]) {
        self.replica.load_hook_state(values);
    }

    fn after_scaled(&mut self, skipped: bool, by: f64) {
        self.replica.after_scaled(skipped, by as f32);
    }

    fn exchange(&self) -> Option<String> {
        self.replica.exchange()
    }

    fn memory(&mut self) -> MemoryUse {
        self.replica.memory()
    }
}
