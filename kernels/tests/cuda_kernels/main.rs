//! Every CUDA kernel against the CPU's arithmetic: one body, on the shim in both orders of its fibres, and on a GPU.
//!
//! ```text
//! everything(queue)   reduce, fused, bucket, optim, norms, layers, attention, product
//!    table.rs         on the shim, fibres upwards and downwards; then NVRTC for compute_80, 90, 100 and ptxas: registers
//!                     as recorded, no spills
//!    gpu              where there is one, else SKIP with the reason
//! wrong.rs            kernels with a mistake each, which the shim must find
//! ```
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod attention;
mod bucket;
mod common;
mod fused;
mod layers;
mod norms;
mod optim;
mod product;
mod reduce;
mod table;
mod wrong;

use allfold_kernels::cuda::{Gpu, Queue};

/// Every check of every kernel, on one machine.
fn everything(queue: &Queue) {
    reduce::check(queue);
    fused::check(queue);
    bucket::check(queue);
    optim::check(queue);
    norms::check(queue);
    layers::check(queue);
    attention::check(queue);
    product::check(queue);
}

#[test]
fn gpu() {
    match Gpu::open() {
        Ok(machine) => everything(&Queue::new(machine, 0).unwrap()),
        Err(why) => println!("SKIP gpu: {why}"),
    }
}
