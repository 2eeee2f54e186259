//! The gradients of a rank in buckets, and their exchange between ranks with the compression of the configuration's hook.
//!
//! | hook | exchange on a device |
//! |---|---|
//! | `none` | summed in place, during backward |
//! | `fp16`, `bf16` | rounded on the device, summed in 16 bits during backward, widened |
//! | `powersgd`, `topk`, `int8` | copied to the host after backward and exchanged by the CPU's hook: the same bits, slowly |
//! | `local_sgd` | not exchanged; weights are averaged every `local_steps` steps |
//!
//! A bucket is divided by the number of ranks as a whole, when it is sent.

use super::weights::{Weights, here, part, zeroed};
use super::worker::GpuWorker;
use crate::buckets::Bucket;
use crate::engine::Bucketing;
use crate::strategies::hooks::Hook;
use crate::{Config, Error, Network, ParamSpec, Result};
use allfold_collectives::{Buffer, Communicator, Rank, ReduceOp};
use allfold_kernels::DType;
use allfold_kernels::cuda::{Memory, Queue, launch};

enum ReducePath {
    /// Gradients are exchanged uncompressed.
    Whole,
    /// Gradients are exchanged in a narrow type, in memory laid out as the gradients are, which has been allocated.
    Narrow(DType, Option<Memory>),
    /// Gradients are exchanged by the CPU's hook.
    Host(Box<Hook<f32>>),
    /// Gradients are not exchanged: each rank keeps its own.
    Kept,
}

/// The exchange of a rank's gradients.
pub(super) struct Exchange<'a> {
    comm: &'a Communicator,
    reduce_path: ReducePath,
}

impl<'a> Exchange<'a> {
    pub fn new(config: &Config, comm: &'a Communicator) -> Result<Exchange<'a>> {
        let reduce_path = match config.hook.as_str() {
            // A single rank has nothing to exchange.
            _ if config.strategy == "single" => ReducePath::Whole,
            "fp16" => ReducePath::Narrow(DType::F16, None),
            "bf16" => ReducePath::Narrow(DType::Bf16, None),
            "powersgd" | "topk" | "int8" => ReducePath::Host(Box::new(Hook::named(config))),
            "local_sgd" if config.loss_scale > 0.0 => {
                let what = "`local_sgd` has no loss scale on GPUs: ranks would skip steps of their own";
                return Err(Error::Config(what.into()));
            }
            "local_sgd" => ReducePath::Kept,
            _ => ReducePath::Whole,
        };
        Ok(Exchange { comm, reduce_path })
    }

    /// Allocates the memory of narrow gradients.
    pub fn allocate(&mut self, weights: &Weights, queue: &Queue) -> Result<()> {
        if let (ReducePath::Narrow(dtype, narrow), [unit]) = (&mut self.reduce_path, &weights.units[..]) {
            *narrow = Some(zeroed(queue, unit.graded * dtype.size())?);
        }
        Ok(())
    }

    /// The bytes of buckets on the device that are no views of the gradients, and of the state of the CPU's hook.
    pub fn bytes(&self) -> u64 {
        match &self.reduce_path {
            ReducePath::Narrow(_, memory) => memory.as_ref().map_or(0, |memory| memory.len() as u64),
            ReducePath::Host(hook) => 4 * hook.elements() as u64,
            ReducePath::Whole | ReducePath::Kept => 0,
        }
    }

    /// Whether the exchange only queues work and never waits on the host, so that a step can be captured as a graph.
    pub fn captures(&self) -> bool {
        !matches!(self.reduce_path, ReducePath::Host(_))
    }

    /// Returns the state of the CPU's hook, as [`Hook::hook_state`] does.
    pub fn hook_state(&mut self, network: &Network<f32>, weights: &Weights) -> Vec<(&'static str, Vec<f32>)> {
        match &mut self.reduce_path {
            ReducePath::Host(hook) => hook.hook_state(&weights.members, network.params()),
            _ => Vec::new(),
        }
    }

    /// Undoes the hook's changes of the last step, as [`Hook::undo`] does.
    pub fn undo(&mut self) {
        if let ReducePath::Host(hook) = &mut self.reduce_path {
            hook.undo();
        }
    }

    /// Rescales the errors that the hook remembers, as [`Hook::rescale`] does.
    pub fn rescale(&mut self, by: f32) {
        if let ReducePath::Host(hook) = &mut self.reduce_path {
            hook.rescale(by);
        }
    }

    /// Restores the hook's state, as [`Hook::load_hook_state`] does.
    pub fn load_hook_state(&mut self, network: &Network<f32>, weights: &Weights, values: &[Vec<f32>]) {
        if let ReducePath::Host(hook) = &mut self.reduce_path {
            hook.load_hook_state(&weights.members, network.params(), values);
        }
    }
}

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
