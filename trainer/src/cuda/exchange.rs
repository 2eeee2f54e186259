//! The exchange of gradient buckets between ranks, with the compression of the configuration's hook.
//!
//! | hook | exchange on a device |
//! |---|---|
//! | `none` | summed in place, during backward |
//! | `fp16`, `bf16` | rounded on the device, summed in 16 bits during backward, widened |
//! | `powersgd`, `topk`, `int8` | copied to the host after backward and exchanged by the CPU's hook: the same bits, slowly |
//! | `local_sgd` | not exchanged; weights are averaged every `local_steps` steps |

use super::passes::PassContext;
use super::weights::{Weights, part};
use crate::strategies::hooks::Hook;
use crate::{Config, Error, Network, Result};
use allfold_collectives::{Buffer, Communicator, ReduceOp};
use allfold_kernels::DType;
use allfold_kernels::cuda::{Memory, Queue, launch};

enum ReducePath {
    /// Gradients are exchanged uncompressed.
    Whole,
    /// Gradients are exchanged in a narrow type, in memory laid out as the gradients are.
    Narrow(DType, Memory),
    /// Gradients are exchanged by the CPU's hook.
    Host(Box<Hook<f32>>),
    /// Gradients are not exchanged: each rank keeps its own.
    Kept,
}

/// The exchange of a rank's gradients.
pub(super) struct Exchange<'a> {
    comm: &'a Communicator,
    reduce_path: ReducePath,
    /// The number of steps done.
    steps: u64,
}

impl<'a> Exchange<'a> {
    pub fn new(
        config: &Config,
        weights: &Weights,
        comm: &'a Communicator,
        queue: &Queue,
    ) -> Result<Exchange<'a>> {
        let narrow = |dtype: DType| -> Result<ReducePath> {
            let memory =
                Memory::new(queue.machine(), queue.device(), weights.grads.len() / 4 * dtype.size())?;
            queue.fill(memory.all(), 0)?;
            Ok(ReducePath::Narrow(dtype, memory))
        };
        let reduce_path = match config.hook.as_str() {
            // A single rank has nothing to exchange.
            _ if config.strategy == "single" => ReducePath::Whole,
            "fp16" => narrow(DType::F16)?,
            "bf16" => narrow(DType::Bf16)?,
            "powersgd" | "topk" | "int8" => ReducePath::Host(Box::new(Hook::named(config))),
            "local_sgd" if config.loss_scale > 0.0 => {
                let what = "`local_sgd` has no loss scale on GPUs: ranks would skip steps of their own";
                return Err(Error::Config(what.into()));
            }
            "local_sgd" => ReducePath::Kept,
            _ => ReducePath::Whole,
        };
        Ok(Exchange { comm, reduce_path, steps: 0 })
    }

    /// The bytes of buckets on the device that are no views of the gradients, and of the state of the CPU's hook.
    pub fn bytes(&self) -> u64 {
        match &self.reduce_path {
            ReducePath::Narrow(_, memory) => memory.len() as u64,
            ReducePath::Host(hook) => 4 * hook.elements() as u64,
            ReducePath::Whole | ReducePath::Kept => 0,
        }
    }

    /// Whether the exchange only queues work and never waits on the host, so that a step can be captured as a graph.
    pub fn captures(&self) -> bool {
        !matches!(self.reduce_path, ReducePath::Host(_))
    }

    /// Divides a full bucket by the number of ranks, and starts its exchange if it runs during backward; with `local_sgd`, neither.
    pub fn send(&self, bucket: usize, with: &mut PassContext<'_, '_>) -> Result<()> {
        let span = &with.weights.buckets[bucket];
        let data = part(with.weights.grads.all(), span, 4)?;
        let world = self.comm.size();
        if world > 1 && !matches!(self.reduce_path, ReducePath::Kept) {
            launch::divide(with.queue, DType::F32, data, world)?;
        }
        match &self.reduce_path {
            ReducePath::Whole => with.link.all_reduce(with.queue, DType::F32, ReduceOp::Sum, data)?,
            ReducePath::Narrow(dtype, memory) => {
                let narrow = part(memory.all(), span, dtype.size())?;
                launch::cast(with.queue, (DType::F32, data), (*dtype, narrow), 1.0)?;
                with.link.all_reduce(with.queue, *dtype, ReduceOp::Sum, narrow)?;
            }
            ReducePath::Host(_) | ReducePath::Kept => {}
        }
        Ok(())
    }

    /// Completes the exchange once all buckets are full: work queued after this call finds the sums in the gradients' memory.
    pub fn finish(&mut self, network: &Network<f32>, with: &mut PassContext<'_, '_>) -> Result<()> {
        with.link.join(with.queue)?;
        match &mut self.reduce_path {
            ReducePath::Whole | ReducePath::Kept => Ok(()),
            ReducePath::Narrow(dtype, memory) => {
                let grads = with.weights.grads.all();
                launch::cast(with.queue, (*dtype, memory.all()), (DType::F32, grads), 1.0)?;
                Ok(())
            }
            ReducePath::Host(hook) => {
                // Backward may still sum over ranks, and the host reads the gradients next.
                with.link.wait(with.queue, "finish backward")?;
                let mut sent = Vec::new();
                for (at, bucket) in with.weights.members.iter().enumerate() {
                    let values = with.weights.read_bucket(with.queue, bucket)?;
                    let mut buffer = Buffer::<f32>::zeroed(values.len());
                    buffer.copy_from_slice(&values);
                    sent.push(hook.send(at, buffer, self.comm)?);
                }
                for ((at, bucket), sent) in with.weights.members.iter().enumerate().zip(sent) {
                    let (sum, _) = hook.finish(sent, (at, bucket, network.params()), self.comm)?;
                    with.weights.write_bucket(with.queue, bucket, &sum)?;
                }
                Ok(())
            }
        }
    }

    /// After the optimiser's step: with the hook `local_sgd`, averages the weights of all ranks in every `local_steps`-th step.
    pub fn after_step(&mut self, config: &Config, with: &mut PassContext<'_, '_>) -> Result<()> {
        self.steps += 1;
        if matches!(self.reduce_path, ReducePath::Kept) && self.steps.is_multiple_of(config.local_steps) {
            let params = with.weights.params.all();
            with.link.all_reduce(with.queue, DType::F32, ReduceOp::Avg, params)?;
            with.link.join(with.queue)?;
            with.weights.narrow_all(with.queue)?;
        }
        Ok(())
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
    pub fn load_hook_state(
        &mut self,
        network: &Network<f32>,
        weights: &Weights,
        steps: u64,
        values: &[Vec<f32>],
    ) {
        self.steps = steps;
        if let ReducePath::Host(hook) = &mut self.reduce_path {
            hook.load_hook_state(&weights.members, network.params(), values);
        }
    }
}
