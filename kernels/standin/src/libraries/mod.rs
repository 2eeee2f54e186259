//! A stand-in for NVIDIA's driver and NVRTC, so that [`allfold_kernels::cuda::Gpu`] and every call of cudarc's run where there is
//! no GPU.
//!
//! ```text
//! Gpu -> cudarc -> dlopen("libcuda.so.1")
//!                    |  library.rs   compiles and loads this library, which jumps into the tables below
//!                    |  device.rs memory.rs stream.rs event.rs module.rs graph.rs     a function and its rule, row by row
//!                    |  world.rs     what there is: contexts, streams, events, modules, graphs, memory
//!                    |  capture.rs capturing.rs   captures, and the rules of streams that leave and join them
//!                    |  work.rs      a thread per stream runs tasks (task.rs), and kernels by the shim, after seeded delays
//!                    |  range.rs     device memory, page by page: what a kernel must not touch is noticed
//! compile.rs -> dlopen("libnvrtc.so.13")   nvrtc.rs
//! vendor     -> dlopen("libcublasLt.so.13"), dlopen("libcudnn.so.9")   blas.rs dnn.rs
//! ```
//!
//! A process has one stand-in, [`install`]ed before the first call of CUDA, or by `ALLFOLD_STANDIN=2` in the environment of a
//! test that opens its GPU by [`gpu`], for two GPUs; [`standin_rules`] lists what each function is held to. What a real driver
//! leaves undefined (a destroyed handle, memory that was freed) is noted in [`standin_violations`].

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
mod library;
mod memory;
mod module;
mod nvrtc;
mod options;
mod range;
mod stream;
mod tables;
mod task;
mod work;
mod world;

pub use blas::standin_products;
pub use dnn::{Used, standin_convolutions};
pub use install::{gpu, install};
pub use nvrtc::standin_compilations;
pub use options::{Convolutions, Nvrtc, Products, StandinOptions};
pub use tables::standin_rules;
pub use task::Gate;
pub use work::standin_spin;
pub use world::{Live, standin_live, standin_violations};
