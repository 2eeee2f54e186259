//! The evaluation of a batch on a device.

use super::staging::Staged;
use super::worker::GpuWorker;
use crate::{Batch, Result};
use allfold_collectives::ReduceOp;
use allfold_gpu_passes::PassContext;
use allfold_kernels::nn::Float;

impl GpuWorker<'_> {
    /// The sum of the losses of a batch, and the number of correct answers. Ranks that share positions must call it together.
    pub fn evaluate<F: Float>(&mut self, batch: &Batch<F>) -> Result<(f64, u64)> {
        self.settle("finish a step")?;
        self.stage(batch)?;
        let Some(staged) = self.staging.take_last(&self.queue)? else { return Ok((0.0, 0)) };
        let Staged { half, samples: n } = staged;
        self.passes.select(0, &self.queue)?;
        // Graphs name the memory for a step's samples, so a larger batch gets memory for the duration of this call.
        let kept = self.passes.reserve(n, &self.queue)?;
        let scored = self.score(half, n);
        if let Some([input, labels]) = kept {
            (self.passes.slot.input, self.passes.slot.labels) = (input, labels);
        }
        scored
    }

    fn score(&mut self, half: usize, n: usize) -> Result<(f64, u64)> {
        self.copy_micro_batch(half, 0, n)?;
        self.staging.used(half, &self.queue)?;
        let rows = n * self.passes.network.rows();
        let (losses, hits) = (self.queue.memory(4 * rows)?, self.queue.memory(4 * rows)?);
        let mut with =
            PassContext { queue: &self.queue, weights: &self.weights, axes: self.groups.axes(), n };
        self.passes.evaluate(&mut with)?;
        self.passes.loss(&mut with, None, losses.all())?;
        self.passes.hits(&mut with, hits.all())?;
        self.settle("evaluate")?;
        let losses: Vec<f32> = self.queue.download(losses.all())?;
        let hits: Vec<u32> = self.queue.download(hits.all())?;
        self.passes.clear();
        let loss = losses.iter().map(|loss| f64::from(*loss)).sum();
        let mut sums = [loss, f64::from(hits.iter().sum::<u32>())];
        if let Some(context) = &self.groups.context_host {
            context.all_reduce(&mut sums, ReduceOp::Sum)?;
        }
        Ok((sums[0], sums[1] as u64))
    }
}
