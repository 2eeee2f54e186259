//! Tests of every CUDA kernel against the CPU's arithmetic: one body, on the shim in both orders of its fibres, and on a GPU.
//!
//! ```text
//! everything(queue)   reduce, fused, bucket, optim, norms, layers, attention, parallel, product, split_loss
//!    table.rs         on the shim, fibres upwards and downwards; then NVRTC for compute_80, 90, 100 and ptxas: registers
//!                     as recorded, no spills
//!    gpu              where there is one, else SKIP with the reason
//!    over_the_driver  by the driver's calls, on a stand-in for it
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
mod parallel;
mod product;
mod reduce;
mod split_loss;
mod table;
mod wrong;

use allfold_cuda::{Gpu, Queue};

/// Runs every check of every kernel on one machine.
fn everything(queue: &Queue) {
    reduce::check(queue);
    fused::check(queue);
    bucket::check(queue);
    optim::check(queue);
    norms::check(queue);
    layers::check(queue);
    attention::check(queue);
    parallel::check(queue);
    product::check(queue);
    split_loss::check(queue);
}

#[test]
fn gpu() {
    match allfold_standin::gpu() {
        Ok(machine) => everything(&Queue::new(machine, 0).unwrap()),
        Err(why) => println!("SKIP gpu: {why}"),
    }
}

/// Runs the test body through [`Gpu`] and the driver's calls, in a process with a stand-in for the driver.
#[test]
fn over_the_driver() {
    use allfold_standin::{StandinOptions, install, standin_live, standin_violations};
    const NAME: &str = "ALLFOLD_STANDIN_TEST";
    if std::env::var(NAME).is_ok() {
        install(StandinOptions { delay: std::time::Duration::from_micros(20), ..StandinOptions::default() })
            .unwrap();
        everything(&Queue::new(Gpu::open().unwrap(), 0).unwrap());
        let live = standin_live();
        assert_eq!((live.streams, live.memory, live.contexts), (0, 0, 1), "{live:?}");
        return assert!(standin_violations().is_empty());
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["over_the_driver", "--exact"]).env(NAME, "everything").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
