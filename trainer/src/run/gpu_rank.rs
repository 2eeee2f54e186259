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

/// A rank of `comm` on a device of `machine`.
pub(super) fn replica<'a>(
    config: &'a Config,
    samples: SampleForm,
    comm: &'a Communicator,
    machine: Arc<dyn CudaMachine>,
) -> Result<Replica<'a>> {
    let device = cuda::device_of(config, comm, &*machine)?;
    let network = models::build(config, samples)?;
    same_layout(comm, &network)?;
    // A quarter of the time that ALLFOLD_TIMEOUT gives is left for finding out which rank is late.
    let deadline = Joining::deadlines_from_env()?.operation * 3 / 4;
    Replica::of(config, network, comm, Within { machine, device, deadline })
}

/// Copies the device's weights, running statistics and optimiser state to the host.
fn fetch<F: Float>(replica: &mut Replica<'_>, host: &mut Host<F>) -> Result<()> {
    let Host { model, optimiser } = host;
    model.allocate();
    replica.download(&mut model.params, &mut model.buffers, &mut **optimiser)
}

impl<F: Float> TrainingRank<F> for Replica<'_> {
    fn upload(&mut self, host: &mut Host<F>) -> Result<()> {
        Replica::upload(self, &host.model.params, &host.model.buffers, &mut *host.optimiser)?;
        host.free();
        Ok(())
    }

    fn download(&mut self, host: &mut Host<F>) -> Result<()> {
        fetch(self, host)?;
        match self.config().mixes_devices() {
            true => Ok(self.comm().broadcast(&mut host.model.buffers, Rank(0))?),
            false => Ok(()),
        }
    }

    fn gather(&mut self, host: &mut Host<F>, shared: bool) -> Result<()> {
        match self.config().mixes_devices() {
            true => TrainingRank::download(self, host),
            false if shared || self.is_sharded() || self.comm().rank() == Rank(0) => fetch(self, host),
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
        Loaded { batches, batch }: Loaded<'_, '_, F>,
        input: StepInput,
        everywhere: u64,
        scaler: Option<GradScaler>,
    ) -> Result<StepDone> {
        let comm = self.comm();
        let start = comm.now();
        if !self.is_staged() {
            batches.next(batch)?;
            self.stage(batch)?;
        }
        let gathered = comm.now();
        let samples = self.start(input, everywhere, scaler.is_some())?;
        // Also over the end of an epoch: a step must not take longer where an epoch has few.
        if batches.more() {
            batches.next(batch)?;
            self.stage(batch)?;
        }
        let done = self.finish(samples)?;
        let (data, backward) = (gathered - start, comm.now() - gathered);
        let time = StepBreakdown { data, backward, ..StepBreakdown::default() };
        Ok(StepDone { loss: done.loss, time, skipped: done.skipped, not_finite: None })
    }

    /// Also gives every rank rank 0's running statistics. If other ranks compute on the CPU, each evaluation does.
    fn settle(&mut self, host: &mut Host<F>) -> Result<()> {
        if !ddp::replicas_diverge(self.config()) {
            return if self.config().mixes_devices() { Ok(()) } else { self.share_statistics() };
        }
        fetch(self, host)?;
        self.comm().all_reduce(&mut host.model.params, ReduceOp::Avg)?;
        self.comm().broadcast(&mut host.model.buffers, Rank(0))?;
        TrainingRank::upload(self, host)
    }

    fn evaluate(&mut self, _: &mut Host<F>, set: (&Dataset, usize)) -> Result<Evaluation> {
        if self.config().mixes_devices() {
            self.share_statistics()?;
        }
        self.open()?;
        let (place, batch) = ((self.comm(), self.evaluates()), self.config().training.batch);
        let score = evaluate_by::<F>(set, batch, place, |samples| Replica::evaluate(self, samples))?;
        self.close()?;
        Ok(score)
    }

    fn hook_state(&mut self) -> Own<F> {
        Replica::hook_state(self)
    }

    fn load_hook_state(&mut self, values: &[Vec<F>]) {
        Replica::load_hook_state(self, values);
    }

    fn after_scaled(&mut self, skipped: bool, by: f64) {
        Replica::after_scaled(self, skipped, by as f32);
    }

    fn exchange(&self) -> Option<String> {
        Replica::exchange(self)
    }

    fn memory(&mut self) -> MemoryUse {
        Replica::memory(self)
    }
}
