//! Training on GPUs: the run of [`crate::run`], with each rank's model on a GPU.
//!
//! ```text
//! run ---- Replica          what a run calls; how it ends when a rank or the device fails
//!             |-- Driver          the strategy's step (crate::strategies), over the RankEngine that follows
//!             '-- GpuWorker       stages batches, evaluates, copies weights and state to and from the host; in `rank` the RankEngine
//!                   |-- Captures        the parts of a step that are CUDA graphs, chosen alike on all ranks
//!                   |-- Passes          each phase on the device (allfold_gpu_passes)
//!                   |-- Weights         f32 parameters with narrow copies, and gradients, by unit
//!                   |-- DeviceOptimiser     one launch for all tensors
//!                   |-- Exchange        gradients in buckets, compressed by the configuration's hook
//!                   '-- GpuGroups       for each axis a DeviceGroup: sums and gathers on a separate stream (allfold_gpu::device)
//! ```
//!
//! The trait [`CudaMachine`] defines a device: a GPU, or the shim that runs the source of the GPU kernels on this CPU, with which
//! the tests train without a GPU. Losses equal the CPU's up to rounding: products are summed in another order, and 16-bit results
//! are rounded where tensors are stored. With `exchange = "host"`, `"device"` or `"scheduled"`, sums over ranks have the same bits
//! as on the CPU.

mod bucketing;
mod captures;
mod device;
mod evaluate;
mod exchange;
mod groups;
mod optimiser;
mod outcome;
mod rank;
mod replica;
mod serving;
mod spans;
mod staging;
mod unit;
mod weights;
mod within;
mod worker;

pub use device::device_of;
pub use outcome::StepOutcome;
pub use replica::{Replica, kept};
pub use within::Within;

use crate::{Config, Result};
pub use allfold_cuda::CudaMachine;

use allfold_cuda::Gpu;
use std::sync::{Arc, OnceLock};

/// Opens the GPUs of this machine, once, if `config` gives any rank a GPU; `None` for the CPU.
///
/// # Errors
/// If no GPU can be used; the message names what is missing, and how to get it.
pub fn open(config: &Config) -> Result<Option<Arc<dyn CudaMachine>>> {
    static GPU: OnceLock<allfold_cuda::Result<Arc<dyn CudaMachine>>> = OnceLock::new();
    match config.uses_gpus() {
        true => Ok(Some(GPU.get_or_init(Gpu::open).clone()?)),
        false => Ok(None),
    }
}
