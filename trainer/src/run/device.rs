//! A run on a GPU: transfers of weights and optimiser state, and its step.

use super::Run;
use crate::cuda::{self, CudaMachine, Replica};
use crate::data::loader::Batches;
use crate::engine::StepInput;
use crate::evaluate::{Evaluation, evaluate_by};
use crate::strategies::ddp;
use crate::timing::StepBreakdown;
use crate::{Config, Dataset, MemoryUse, Result, SampleForm};
use allfold_collectives::{Communicator, Rank, ReduceOp};
use allfold_config::RankDevice;
use allfold_kernels::nn::Float;
use std::sync::Arc;

/// The GPUs of this machine, if `config` lets this rank compute on one.
pub(super) fn machine(config: &Config, comm: &Communicator) -> Result<Option<Arc<dyn CudaMachine>>> {
    match config.device_of(comm.rank().index())? {
        RankDevice::Cpu => Ok(None),
        RankDevice::Cuda(_) => cuda::open(config),
    }
}

/// This rank's model on a device of `machine`, unless the rank computes on the CPU and others on GPUs.
pub(super) fn replica<'a>(
    config: &'a Config,
    samples: SampleForm,
    comm: &'a Communicator,
    machine: Option<Arc<dyn CudaMachine>>,
) -> Result<Option<Replica<'a>>> {
    let here = !config.mixes_devices() || config.device_of(comm.rank().index())? != RankDevice::Cpu;
    let device = machine.filter(|_| here).map(|machine| {
        let device = cuda::device_of(config, comm, &*machine)?;
        Replica::new(config, samples, comm, (machine, device))
    });
    device.transpose()
}

impl<F: Float> Run<'_, F> {
    /// Copies the host's weights and optimiser state to the device, or on the CPU to the engine.
    pub(super) fn upload(&mut self) -> Result<()> {
        match &mut self.device {
            Some(device) => device.upload(&self.model.params, &self.model.buffers, &mut *self.optimiser),
            None => self.upload_units(),
        }
    }

    /// Copies the device's weights and optimiser state to the host, if there is a device.
    pub(super) fn download(&mut self) -> Result<()> {
        match &mut self.device {
            Some(device) => {
                device.download(&mut self.model.params, &mut self.model.buffers, &mut *self.optimiser)
            }
            None => Ok(()),
        }
    }

    /// Before the evaluations of an epoch: gives every rank the same weights, and on GPUs rank 0's running statistics. If other ranks
    /// compute on the CPU, each evaluation shares the statistics.
    pub(super) fn settle(&mut self) -> Result<()> {
        if let Some(engine) = &mut self.engine {
            return engine.worker.settle();
        }
        if !ddp::replicas_diverge(self.config) {
            let device = self.device.as_mut().filter(|_| !self.config.mixes_devices());
            return device.map_or(Ok(()), Replica::share_statistics);
        }
        self.download()?;
        self.comm.all_reduce(&mut self.model.params, ReduceOp::Avg)?;
        self.comm.broadcast(&mut self.model.buffers, Rank(0))?;
        self.upload()
    }

    /// The memory that this rank holds between two steps.
    pub(super) fn memory(&mut self) -> MemoryUse {
        match (&self.device, &mut self.engine) {
            (Some(device), _) => device.memory(),
            (None, Some(engine)) => engine.memory(),
            (None, None) => MemoryUse::default(),
        }
    }

    /// The score on the first samples of a set after `steps` steps. If the loss is not finite, the last step has ruined the weights, and
    /// the run fails.
    pub(super) fn evaluate(&mut self, set: (&Dataset, usize), steps: u64) -> Result<Evaluation> {
        let (batch, comm) = (self.config.training.batch, self.comm);
        let score = match &mut self.device {
            Some(device) => {
                if self.config.mixes_devices() {
                    device.share_statistics()?;
                }
                device.open()?;
                let place = (comm, device.evaluates());
                let score = evaluate_by::<F>(set, batch, place, |samples| device.evaluate(samples))?;
                device.close()?;
                score
            }
            None => self.evaluate_units(set)?,
        };
        match score.loss.is_finite() {
            true => Ok(score),
            false => Err(self.diverged(("the test loss", score.loss), steps, None)),
        }
    }

    /// One step on the device, if there is one. While the device computes, the next batch is copied to it. Forward pass, backward
    /// pass and optimiser are one piece of work for the host: their time counts as backward's.
    pub(super) fn device_step(
        &mut self,
        batches: &mut Batches<F>,
        input: StepInput,
    ) -> Result<Option<(f64, StepBreakdown)>> {
        let Run { device: Some(device), comm, batch, scaler, sampler, config, .. } = self else {
            return Ok(None);
        };
        let of_epoch = u64::from(input.draw_key.step) % sampler.steps(config).max(1);
        let everywhere = sampler.in_step(config, of_epoch);
        let start = comm.now();
        if !device.is_staged() {
            batches.next(batch)?;
            device.stage(batch)?;
        }
        let gathered = comm.now();
        let samples = device.start(input, everywhere, scaler.is_some())?;
        if batches.left() > 0 {
            batches.next(batch)?;
            device.stage(batch)?;
        }
        let outcome = device.finish(samples)?;
        if let Some(scaler) = scaler {
            scaler.update(outcome.skipped);
        }
        let time = StepBreakdown {
            data: gathered - start,
            backward: comm.now() - gathered,
            ..StepBreakdown::default()
        };
        Ok(Some((outcome.loss, time)))
    }
}
