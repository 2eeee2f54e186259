//! Ranks on GPUs: collectives between the devices of one process, and over NCCL.
//!
//! ```text
//! device   ranks as buffers, driven by one thread: messages or a fused kernel; `DeviceGroup`: sums between separate ranks
//! nccl     one rank of an NCCL communicator on one GPU: NCCL's own collectives, or any schedule over NCCL's messages
//! ```
//!
//! Both modules use the public interface of `allfold_collectives`: a [`allfold_collectives::Communicator`] by which ranks agree.
//! Machines are those of `allfold_cuda`: a GPU machine, or the CPU shim, which runs the same kernels, as in this example:
//!
//! ```
//! use allfold_collectives::registry::find;
//! use allfold_collectives::{Collective, DType, Error, Rank, ReduceOp};
//! use allfold_gpu::device::{DeviceRanks, ExecutionMode, DeviceCollective};
//! use allfold_cuda::Memory;
//! use allfold_standin::{FiberOrder, Shim};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut ranks = DeviceRanks::new(Shim::open(FiberOrder::Upwards)?, 4)?;
//! let buffers: Vec<Memory> = (0..4)
//!     .map(|rank| Ok::<_, Error>(ranks.queue(Rank(rank))?.upload(&[rank as f32; 8]).expect("memory")))
//!     .collect::<Result<_, _>>()?;
//! let slices: Vec<_> = buffers.iter().map(Memory::all).collect();
//! let algorithm = find(Collective::AllReduce, "ring")?;
//! let (dtype, op, mode) = (DType::F32, ReduceOp::Sum, ExecutionMode::Messages);
//! ranks.run(&DeviceCollective { algorithm, root: Rank(0), dtype, op, mode, segments: 1 }, &slices)?;
//! assert_eq!(ranks.main().download::<f32>(slices[3])?, [6.0; 8]);
//! # Ok(())
//! # }
//! ```

pub mod device;
mod driver;
#[allow(unsafe_code, reason = "NCCL is a foreign library; each call states why it is sound")]
pub mod nccl;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(any(test, feature = "testing"))]
pub(crate) use allfold_collectives::World;
pub(crate) use allfold_collectives::{
    Buffer, Collective, Communicator, DType, Element, Error, Geometry, Rank, ReduceOp, Result, check,
    meaning, registry, schedule,
};
