//! A stand-in for NVIDIA's driver and NVRTC, so that [`allfold_kernels::cuda::Gpu`] and every call of cudarc's run where there is no GPU.
//!
//! ```text
//! Gpu -> cudarc -> dlopen("libcuda.so.1")
//!                    |  library.rs   finds this library, which jumps into the tables below
//!                    |  device.rs memory.rs stream.rs event.rs module.rs graph.rs     a function and its rule, row by row
//!                    |  world.rs     what there is: contexts, streams, events, modules, graphs, memory
//!                    |  work.rs      a thread per stream runs copies, and kernels by the shim, after seeded random delays
//!                    |  range.rs     device memory, page by page: what a kernel must not touch is noticed
//! compile.rs -> dlopen("libnvrtc.so.13")   nvrtc.rs
//! vendor     -> dlopen("libcublasLt.so.13"), dlopen("libcudnn.so.9")   blas.rs dnn.rs
//! ```
//!
//! A process has one stand-in, [`install`]ed before the first call of CUDA, or by `ALLFOLD_STANDIN=2` in the environment of
//! a test that opens its GPU by [`gpu`], for two GPUs; [`standin_rules`] lists what each function is held to. What a real driver leaves undefined (a
//! destroyed handle, memory that was freed) is noted in [`standin_violations`].

#![allow(non_snake_case, reason = "the functions have the driver's names")]
#![allow(
    clippy::disallowed_methods,
    reason = "a driver has a clock: streams are delayed, waits have a limit, and events are timed"
)]

mod blas;
mod capture;
mod device;
mod dnn;
mod event;
mod foreign;
mod graph;
mod library;
mod memory;
mod module;
mod nvrtc;
mod range;
mod stream;
mod table;
mod work;
mod world;

pub use blas::{Products, standin_products};
pub use dnn::{Convolutions, Used, standin_convolutions};
pub use nvrtc::{Nvrtc, standin_compilations};
pub use table::standin_rules;
pub use work::{Gate, standin_spin};
pub use world::{Live, standin_live, standin_violations};

use allfold_kernels::cuda::libraries::{Library, hide};
use allfold_kernels::cuda::{Error, Gpu, Machine, Result, seed_defects};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What the stand-in is.
#[derive(Clone, Debug)]
pub struct StandinOptions {
    /// GPUs.
    pub devices: usize,
    /// The driver's CUDA, as the driver counts: 13000 is 13.0.
    pub driver: i32,
    /// What `cuInit` answers; 0 is success.
    pub init: u32,
    /// The GPUs' architecture.
    pub arch: u32,
    /// GPUs in exclusive-process mode that another process holds.
    pub taken: &'static [usize],
    /// Whether kernels of a GPU can be let to reach the others' memory.
    pub peers: bool,
    /// Bytes of each GPU.
    pub memory: u64,
    /// NVRTC; `None`: it is not there.
    pub nvrtc: Option<Nvrtc>,
    /// cuBLASLt; `None`: it is not there.
    pub products: Option<Products>,
    /// cuDNN; `None`: it is not there.
    pub convolutions: Option<Convolutions>,
    /// Names of libraries of other versions that are there too.
    pub others: &'static [&'static str],
    /// The longest that a stream waits before a task.
    pub delay: Duration,
    /// What the delays are drawn from.
    pub seed: u64,
    /// A call that waits longer than this is a violation, and answers that a launch timed out.
    pub limit: Duration,
    /// Defects of `docs/GPU.md` that are put back in: [`allfold_kernels::cuda::Machine::seeded`] answers by this list.
    pub seeded: &'static [u8],
}

impl Default for StandinOptions {
    fn default() -> StandinOptions {
        StandinOptions {
            devices: 1,
            driver: 13_000,
            init: 0,
            arch: 90,
            taken: &[],
            peers: true,
            memory: 8 << 30,
            nvrtc: Some(Nvrtc::default()),
            products: None,
            convolutions: None,
            others: &[],
            delay: Duration::from_micros(100),
            seed: 1,
            limit: Duration::from_secs(20),
            seeded: &[],
        }
    }
}

/// Makes the stand-in this process's CUDA. Call it before anything else of CUDA, once.
///
/// # Errors
/// What does not compile or load, or [`Error::Argument`] the second time.
pub fn install(options: StandinOptions) -> Result<()> {
    let StandinOptions { nvrtc, products, convolutions, others, seeded, .. } = options.clone();
    world::begin(options)?;
    seed_defects(seeded);
    hide(&[Library::Nccl]);
    library::install(&["libcuda.so.1", "libcuda.so"], table::DRIVER)?;
    match nvrtc {
        Some(nvrtc) => library::install(&[nvrtc.file], &[nvrtc::ENTRIES])?,
        None => hide(&[Library::Nvrtc]),
    }
    match products {
        Some(products) => library::install(&[products.file], blas::TABLE)?,
        None => hide(&[Library::CublasLt]),
    }
    match convolutions {
        Some(_) => library::install(&["libcudnn.so.9"], dnn::TABLE)?,
        None => hide(&[Library::Cudnn]),
    }
    for other in others {
        let table = if other.starts_with("libnvrtc") { &[nvrtc::ENTRIES] } else { blas::TABLE };
        library::install(&[other], table)?;
    }
    Ok(())
}

/// [`Gpu::open`], over a stand-in where the environment variable `ALLFOLD_STANDIN` asks for one: what a test opens that runs on a
/// GPU.
///
/// # Errors
/// As [`Gpu::open`] and [`install`], and [`Error::Argument`] for what is no number of GPUs.
pub fn gpu() -> Result<Arc<dyn Machine>> {
    by_environment()?;
    Gpu::open()
}

/// Installs a stand-in of as many GPUs as the environment variable `ALLFOLD_STANDIN` says, if it is set and there is none yet:
/// so a test runs over the driver's calls where that is asked for. Its streams wait less than usual, since such a test has many
/// tasks.
fn by_environment() -> Result<()> {
    static DONE: OnceLock<Result<()>> = OnceLock::new();
    let Ok(text) = std::env::var("ALLFOLD_STANDIN") else { return Ok(()) };
    let wanted = || match text.parse() {
        _ if world::here().is_begun() => Ok(()),
        Ok(devices) => {
            let delay = Duration::from_micros(20);
            install(StandinOptions { devices, delay, ..StandinOptions::default() })
        }
        Err(_) => Err(Error::Argument(format!("ALLFOLD_STANDIN={text}: a number of GPUs, such as 2"))),
    };
    DONE.get_or_init(wanted).clone()
}
