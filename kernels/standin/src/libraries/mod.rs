//! Stand-ins for NVIDIA's driver and libraries, so that [`allfold_cuda::Gpu`] and all of cudarc's calls run on machines
//! without a GPU.
//!
//! ```text
//! Gpu -> cudarc -> dlopen("libcuda.so.1")
//!                    |  library.rs   compiles and loads this library, which jumps into the tables below
//!                    |  device.rs memory.rs stream.rs event.rs ipc.rs module.rs graph.rs     one function and its rule per entry
//!                    |  world.rs     the driver's objects: contexts, streams, events, modules, graphs, memory
//!                    |  capture.rs capturing.rs   captures, and the rules for streams that join and leave them
//!                    |  work.rs      a thread per stream runs tasks (task.rs), and kernels by the shim, after seeded delays
//!                    |  shared_file.rs  memory and events of several processes
//!                    |  range.rs     device memory, page by page: accesses that a kernel must not make are detected
//! compile.rs -> dlopen("libnvrtc.so.13")   nvrtc.rs
//! vendor     -> dlopen("libcublasLt.so.13"), dlopen("libcudnn.so.9")   blas.rs dnn.rs
//! ```
//!
//! A process has one set of stand-ins. It is [`install`]ed before the first call of CUDA, or, in a test that opens its GPU by
//! [`gpu`], by `ALLFOLD_STANDIN=2` in the environment (for two GPUs). [`standin_rules`] lists the rule of each function. Uses that
//! a real driver leaves undefined (a destroyed handle, freed memory) are reported by [`standin_violations`].

#![allow(non_snake_case, reason = "the functions have the driver's names")]
#![allow(
    clippy::disallowed_methods,
    reason = "a driver has a clock: streams are delayed, waits have a limit, and events are timed"
)]

mod blas;
mod capture;
mod capturing;
mod device;
mod dnn;
mod entry;
mod event;
mod foreign;
mod graph;
mod install;
mod ipc;
mod library;
mod memory;
mod module;
mod nvrtc;
mod nvtx;
mod options;
mod range;
mod shared_file;
mod stream;
mod tables;
mod task;
mod work;
mod world;

pub use blas::{standin_epilogues, standin_products};
pub use dnn::{Used, standin_convolutions};
pub use install::{gpu, install};
pub use nvrtc::standin_compilations;
pub use nvtx::{install_ranges, standin_ranges};
pub use options::{Convolutions, Nvrtc, Products, StandinOptions};
pub use tables::standin_rules;
pub use task::Gate;
pub use work::{standin_foreign, standin_spin};
pub use world::{Live, standin_live, standin_violations};
