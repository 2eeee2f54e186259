//! Tests of [`allfold_cuda::Gpu`] and all its calls of cudarc on a stand-in for NVIDIA's driver: no GPU is needed.
//!
//! ```text
//! alone.rs       runs a test in a process of its own, with a stand-in of its own
//! first.rs       from the probe to a kernel's result
//! defects.rs     defects that are put back and must be caught
//! vendor.rs      products and convolutions by stand-ins for cuBLASLt and cuDNN
//! rules.rs       the driver's rules: order, captures, memory
//! cache.rs       compiled kernels on disk
//! bad_input.rs   machines that cannot be used: one-line errors
//! ```
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod alone;
mod bad_input;
mod cache;
mod defects;
mod first;
mod rules;
mod vendor;
