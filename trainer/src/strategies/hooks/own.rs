//! A program's own hooks.

use crate::Result;
use crate::added::Named;
use allfold_collectives::{Buffer, Communicator};
use allfold_kernels::nn::Float;

/// Builds the hook of a rank.
pub type BuildHook<F> = fn(&crate::Config) -> Box<dyn BucketHook<F>>;

/// A hook for `ddp.hook = "NAME"` of strategy `ddp`, on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct OwnHook {
    /// The name by which a configuration selects the hook.
    pub name: &'static str,
    /// A description of the hook in a few words.
    pub about: &'static str,
    /// Builds the hook for `precision.dtype = "f32"`.
    pub f32: BuildHook<f32>,
    /// Builds the hook for `precision.dtype = "f64"`.
    pub f64: BuildHook<f64>,
}

impl Named for OwnHook {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// A program's own hook, which exchanges a bucket of gradients between the backward pass and the optimiser.
pub trait BucketHook<F: Float> {
    /// Replaces the gradients of bucket number `bucket`, which are already divided by the number of ranks, by the gradients
    /// that the optimiser is to use, such as their sum over all ranks. All ranks call `exchange` for the same buckets in the same
    /// order, once per step, after the backward pass. State that the hook keeps from step to step is not in checkpoints.
    ///
    /// # Errors
    /// Failed communication.
    fn exchange(&mut self, bucket: usize, gradients: &mut Buffer<F>, comm: &Communicator) -> Result<()>;
}
