//! How a rank's buckets of gradients are exchanged: the compression of the configuration's hook.
//!
//! | hook | exchange on a device |
//! |---|---|
//! | `none` | summed in place, during backward |
//! | `fp16`, `bf16` | rounded on the device, summed in 16 bits during backward, widened |
//! | `powersgd`, `topk`, `int8` | copied to the host after backward and exchanged by the CPU's hook: the same bits, slowly |
//! | `local_sgd` | not exchanged; weights are averaged every `ddp.local_steps` steps |
//!
//! If other ranks compute on the CPU, every hook, `none` too, is the CPU's.

use super::spans::zeroed;
use super::weights::Weights;
use crate::strategies::hooks::Hook;
use crate::{Config, Error, Result};
use allfold_collectives::Communicator;
use allfold_cuda::{Memory, Queue};
use allfold_kernels::DType;

pub(super) enum ReducePath {
    /// Gradients are exchanged uncompressed.
    Whole,
    /// Gradients are exchanged in a narrow type, in memory laid out as the gradients are; `None` until allocated.
    Narrow(DType, Option<Memory>),
    /// Gradients are exchanged by the CPU's hook.
    Host(Box<Hook<f32>>),
    /// Gradients are not exchanged: each rank keeps its own.
    Kept,
}

/// The exchange of a rank's gradients.
pub(super) struct Exchange<'a> {
    pub comm: &'a Communicator,
    pub reduce_path: ReducePath,
    /// Whether other ranks compute on the CPU: exchanges are then those of the CPU, call by call.
    pub with_cpus: bool,
}

impl<'a> Exchange<'a> {
    pub fn new(config: &Config, comm: &'a Communicator) -> Result<Exchange<'a>> {
        let reduce_path = match config.ddp.hook.as_str() {
            // A single rank has nothing to exchange.
            _ if config.strategy == "single" => ReducePath::Whole,
            _ if config.mixes_devices() => ReducePath::Host(Box::new(Hook::named(config))),
            "fp16" => ReducePath::Narrow(DType::F16, None),
            "bf16" => ReducePath::Narrow(DType::Bf16, None),
            "powersgd" | "topk" | "int8" => ReducePath::Host(Box::new(Hook::named(config))),
            "local_sgd" if config.precision.loss_scale > 0.0 => {
                let what = "`local_sgd` has no loss scale on GPUs: ranks would skip steps of their own";
                return Err(Error::Config(what.into()));
            }
            "local_sgd" => ReducePath::Kept,
            _ => ReducePath::Whole,
        };
        Ok(Exchange { comm, reduce_path, with_cpus: config.mixes_devices() })
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

    /// The CPU's hook, if it exchanges the gradients.
    pub fn hook(&mut self) -> Option<&mut Hook<f32>> {
        match &mut self.reduce_path {
            ReducePath::Host(hook) => Some(hook),
            _ => None,
        }
    }
}
