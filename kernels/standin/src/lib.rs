//! A GPU and NVIDIA's libraries for tests on machines without them: stand-ins that enforce the rules of the real libraries and report
//! violations.
//!
//! ```text
//! shim        a `CudaMachine` that is this CPU: the kernels' own source, a fibre per thread, with a race detector
//! libraries   the driver, NVRTC, cuBLASLt and cuDNN under `allfold_cuda::Gpu`; kernels run on the shim
//! counter     a `CudaMachine` that counts the bytes of launches, and runs nothing
//! abi         comparison of Allfold's declarations of NVIDIA's libraries with NVIDIA's headers
//! ```
//!
//! ```
//! use allfold_cuda as cuda;
//! use allfold_kernels::{DType, ReduceOp};
//! use allfold_standin::{FiberOrder, Shim};
//!
//! # fn main() -> Result<(), cuda::Error> {
//! let queue = cuda::Queue::new(Shim::open(FiberOrder::Upwards)?, 0)?;
//! let (a, b) = (queue.upload(&[1.0f32, 2.0])?, queue.upload(&[10.0f32, 20.0])?);
//! cuda::launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
//! assert_eq!(queue.download::<f32>(a.all())?, [11.0, 22.0]);
//! # Ok(())
//! # }
//! ```

pub mod abi;
mod counter;
mod libraries;
mod shim;

pub use counter::{Counter, Traffic};
pub use libraries::{
    Convolutions, Gate, Live, Nvrtc, Products, StandinOptions, Used, gpu, install, install_ranges,
    standin_compilations, standin_convolutions, standin_epilogues, standin_foreign, standin_live,
    standin_products, standin_ranges, standin_rules, standin_spin, standin_violations,
};
pub use shim::{FiberOrder, Foreign, Poll, Progress, Shim, ShimOptions, shim_kernels, shim_launched};
