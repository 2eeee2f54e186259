//! Gradients in buckets on a device. A bucket is divided by the number of ranks as a whole, when it is sent.

use super::exchange::ReducePath;
use super::spans::part;
use super::weights::here;
use super::worker::GpuWorker;
use crate::buckets::Bucket;
use crate::engine::Bucketing;
use crate::{ParamSpec, Result};
use allfold_collectives::{Buffer, Rank, ReduceOp};
use allfold_cuda::launch;
use allfold_kernels::DType;

impl Bucketing for GpuWorker<'_> {
    fn params(&self) -> &[ParamSpec] {
        self.passes.network.params()
    }

    fn unreached(&self) -> Vec<usize> {
        self.passes.network.unreached()
    }

    fn element(&self) -> usize {
        4
    }

    fn use_buckets(&mut self, buckets: &[Bucket]) -> Result<()> {
        self.weights.use_buckets(buckets)
    }

    fn fill(&mut self, _param: usize) -> Result<()> {
        Ok(())
    }

    fn send_bucket(&mut self, bucket: usize) -> Result<()> {
        if self.captures.replays() {
            return Ok(());
        }
        let GpuWorker { weights, exchange, groups, queue, .. } = self;
        let (span, link) = (&weights.buckets[bucket], groups.data());
        let data = part(here(&weights.units[0].grads)?.all(), span, 4)?;
        let world = exchange.comm.size();
        if world > 1 && !matches!(exchange.reduce_path, ReducePath::Kept) {
            launch::divide(queue, DType::F32, data, world)?;
        }
        match &exchange.reduce_path {
            ReducePath::Whole => link.all_reduce(queue, DType::F32, ReduceOp::Sum, data)?,
            ReducePath::Narrow(dtype, Some(memory)) => {
                let narrow = part(memory.all(), span, dtype.size())?;
                launch::cast(queue, (DType::F32, data), (*dtype, narrow), 1.0)?;
                link.all_reduce(queue, *dtype, ReduceOp::Sum, narrow)?;
            }
            ReducePath::Narrow(_, None) | ReducePath::Host(_) | ReducePath::Kept => {}
        }
        Ok(())
    }

    fn finish_buckets(&mut self) -> Result<()> {
        if self.captures.replays() {
            return Ok(());
        }
        let GpuWorker { weights, exchange, groups, queue, passes, .. } = self;
        let link = groups.data();
        link.join(queue)?;
        match &mut exchange.reduce_path {
            ReducePath::Whole | ReducePath::Kept | ReducePath::Narrow(_, None) => Ok(()),
            ReducePath::Narrow(dtype, Some(memory)) => {
                let grads = here(&weights.units[0].grads)?.all();
                launch::cast(queue, (*dtype, memory.all()), (DType::F32, grads), 1.0)?;
                Ok(())
            }
            ReducePath::Host(hook) => {
                // Backward may still sum over ranks, and the host reads the gradients next.
                link.wait(queue, "finish backward")?;
                let mut sent = Vec::new();
                for (at, bucket) in weights.members.iter().enumerate() {
                    let values = weights.read_bucket(queue, bucket)?;
                    let mut buffer = Buffer::<f32>::zeroed(values.len());
                    buffer.copy_from_slice(&values);
                    sent.push(hook.send(at, buffer, exchange.comm)?);
                }
                for ((at, bucket), sent) in weights.members.iter().enumerate().zip(sent) {
                    let place = (at, bucket, passes.network.params());
                    let (sum, _) = hook.finish(sent, place, exchange.comm)?;
                    weights.write_bucket(queue, bucket, &sum)?;
                }
                Ok(())
            }
        }
    }

    fn broadcast_buffers(&mut self) -> Result<()> {
        Ok(self.groups.data().broadcast(&self.queue, self.weights.buffers.all(), Rank(0))?)
    }

    fn average_params(&mut self) -> Result<()> {
        let GpuWorker { weights, groups, queue, .. } = self;
        let link = groups.data();
        for unit in &mut weights.units {
            link.all_reduce(queue, DType::F32, ReduceOp::Avg, here(&unit.params)?.all())?;
            link.join(queue)?;
            unit.narrow_params(queue, weights.narrow)?;
        }
        Ok(())
    }
}
