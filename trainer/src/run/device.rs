//! A run whose numbers are on a device: what goes there and back, and a step of it.

use super::Run;
use crate::data::loader::Batches;
use crate::evaluate::{Evaluation, evaluate, evaluate_by};
use crate::timing::StepBreakdown;
use crate::{MemoryUse, Result};
use allfold_kernels::nn::Float;

impl<F: Float> Run<'_, F> {
    /// Gives the host's numbers to the device, where there is one.
    pub(super) fn upload(&mut self) -> Result<()> {
        match &mut self.device {
            Some(device) => device.upload(&self.model.params, &self.model.buffers, &mut *self.optimiser),
            None => self.upload_units(),
        }
    }

    /// Takes them back.
    pub(super) fn download(&mut self) -> Result<()> {
        match &mut self.device {
            Some(device) => {
                device.download(&mut self.model.params, &mut self.model.buffers, &mut *self.optimiser)
            }
            None => Ok(()),
        }
    }

    /// The memory that this rank holds between two steps.
    pub(super) fn memory(&mut self) -> MemoryUse {
        if let Some(device) = &self.device {
            return device.memory();
        }
        if let Some(memory) = self.engine_memory() {
            return memory;
        }
        let state = self.optimiser.state().vectors.iter().map(|(_, values)| values.capacity()).sum::<usize>();
        let optimiser = (state * size_of::<F>()) as u64;
        MemoryUse { optimiser, buckets: self.strategy.bytes(), ..self.model.memory() }
    }

    /// The score after `steps` steps. A test loss that is not finite shows here that the last step has spoiled the weights.
    pub(super) fn evaluate(&mut self, steps: u64) -> Result<Evaluation> {
        let (test, batch, comm) = (self.test, self.config.batch, self.comm);
        let score = match &mut self.device {
            _ if self.engine.is_some() => self.evaluate_units(),
            Some(device) => evaluate_by::<F>(test, batch, comm, |samples| device.evaluate(samples)),
            None => evaluate(&mut self.model, test, batch, comm),
        }?;
        match score.loss.is_finite() {
            true => Ok(score),
            false => Err(self.diverged(("the test loss", score.loss), steps, None)),
        }
    }

    /// One step on the device, if there is one. While it computes, the next batch is copied there. Forward pass, backward pass
    /// and optimiser are one piece of work for the host: their time counts as backward's.
    pub(super) fn device_step(
        &mut self,
        batches: &mut Batches<F>,
        lr: f64,
    ) -> Result<Option<(f64, StepBreakdown)>> {
        let Run { device: Some(device), comm, batch, model, scaler, sampler, config, .. } = self else {
            return Ok(None);
        };
        let everywhere =
            sampler.in_step(config, u64::from(model.draw_key.step) % sampler.steps(config).max(1));
        let start = comm.now();
        if !device.is_staged() {
            batches.next(batch)?;
            device.stage(batch)?;
        }
        let gathered = comm.now();
        let samples = device.start(model.draw_key, everywhere, lr, scaler.as_ref())?;
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
