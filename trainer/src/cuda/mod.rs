//! Training on GPUs: the same run, with each rank's model on a device of its own.
//!
//! ```text
//! run ---- Replica          what a run calls; how it ends when a rank or the device fails
//!             |-- State           a step: stage a batch, start, finish; evaluate; numbers to and from the host
//!             |-- Captures        which parts of a step are graphs, alike on all ranks
//!             |-- Passes          forward and backward by each layer's Operation, over kernels::cuda::launch
//!             |     '-- Precision     which type every layer and activation has under autocast, and how pictures lie
//!             |-- Weights         f32 parameters with narrow copies, gradients bucket by bucket
//!             |-- DeviceOptimiser     one launch for all tensors
//!             |-- Exchange        what becomes of buckets on their way, by the configuration's hook
//!             '-- Link            sums over ranks on a stream of its own (allfold_gpu::device)
//! ```
//!
//! What a device is, the trait [`CudaMachine`] says: a GPU, or the shim that runs the same kernels' source on this CPU, by which
//! the tests train without a GPU. Losses are the CPU's up to rounding: products are summed in another order, and 16-bit
//! results are rounded where tensors are stored. With `exchange = "host"` or `"scheduled"` the sums over ranks have the CPU's
//! very bits.

mod backward;
mod captures;
mod device;
mod exchange;
mod layout;
mod optimiser;
mod outcome;
mod passes;
mod precision;
mod replica;
mod state;
#[cfg(test)]
mod tests;
mod weights;
mod within;

pub use device::device_of;
pub use outcome::StepOutcome;
pub use replica::{Replica, kept};
pub use within::Within;

use crate::{Config, Result};
pub use allfold_kernels::cuda::CudaMachine;

use allfold_kernels::cuda::Gpu;
use std::sync::{Arc, OnceLock};

/// Opens the GPUs of this machine, once, if `config` asks for them; `None` for the CPU.
///
/// # Errors
/// What is missing, and how to get it.
pub fn open(config: &Config) -> Result<Option<Arc<dyn CudaMachine>>> {
    static GPU: OnceLock<allfold_kernels::cuda::Result<Arc<dyn CudaMachine>>> = OnceLock::new();
    match config.device.as_str() {
        "cuda" => Ok(Some(GPU.get_or_init(Gpu::open).clone()?)),
        _ => Ok(None),
    }
}
