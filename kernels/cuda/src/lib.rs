//! Reductions, the arithmetic of layers and collectives on NVIDIA GPUs, in CUDA C that NVRTC compiles at run time.
//!
//! ```text
//! launch::reduce(queue, ..)      one function per operation: checks lengths, counts bytes
//!        |
//!      Queue -- CudaMachine --- Gpu    the driver; NVRTC compiles a family of kernels for the present device
//!                          \--- Shim   the same source on the CPU, a fibre per thread (`allfold-standin`, for tests)
//! ```
//!
//! No function here panics where CUDA is missing: [`probe()`] turns a missing driver, library or device into one [`Error`] that names the
//! missing item and explains how to get it. Libraries are loaded at run time, so one program runs on all machines.
//!
//! ```
//! use allfold_cuda as cuda;
//! use allfold_kernels::{DType, ReduceOp};
//!
//! fn main() -> Result<(), cuda::Error> {
//!     let queue = match cuda::Gpu::open() {
//!         Ok(gpu) => cuda::Queue::new(gpu, 0)?,
//!         Err(why) => return Ok(println!("SKIP: {why}")),
//!     };
//!     let (a, b) = (queue.upload(&[1.0f32, 2.0])?, queue.upload(&[10.0f32, 20.0])?);
//!     cuda::launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
//!     assert_eq!(queue.download::<f32>(a.all())?, [11.0, 22.0]);
//!     Ok(())
//! }
//! ```

mod compile;
mod error;
mod gpu;
mod image_cache;
pub mod launch;
pub mod libraries;
mod machine;
mod memory;
mod operands;
mod pinned;
mod pool;
mod probe;
mod ranges;
#[cfg(feature = "testing")]
mod seeded;
mod source;
mod symbols;
pub mod vendor;

pub use compile::{compile_ptx, nvrtc_version};
pub use error::{Error, Result};
pub use gpu::Gpu;
pub use machine::{
    Arguments, CudaEvent, CudaGraph, CudaMachine, CudaStream, IpcHandle, Launch, MemoryAccess, THREADS,
};
pub use memory::{Mark, Memory, Queue, Slice};
pub use pinned::Feed;
pub use pool::PoolUsage;
pub use probe::{PeerLink, Probe, ProbedDevice, peer_link, probe};
pub use ranges::NvtxRange;
#[cfg(feature = "testing")]
pub use seeded::seed_defects;
pub use source::{Family, HEADERS, Kernel};
