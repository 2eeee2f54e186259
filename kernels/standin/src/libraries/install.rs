//! How a process gets its stand-ins.

use super::options::StandinOptions;
use super::{blas, dnn, library, nvrtc, tables, world};
use allfold_kernels::cuda::libraries::{CudaLibrary, hide};
use allfold_kernels::cuda::{CudaMachine, Error, Gpu, Result, seed_defects};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Makes the stand-in this process's CUDA. Call it before anything else of CUDA, once.
///
/// # Errors
/// What does not compile or load, or [`Error::Argument`] the second time.
pub fn install(options: StandinOptions) -> Result<()> {
    let StandinOptions { nvrtc, products, convolutions, others, seeded, .. } = options.clone();
    world::begin(options)?;
    seed_defects(seeded);
    hide(&[CudaLibrary::Nccl]);
    library::install(&["libcuda.so.1", "libcuda.so"], tables::DRIVER)?;
    match nvrtc {
        Some(nvrtc) => library::install(&[nvrtc.file], &[nvrtc::ENTRIES])?,
        None => hide(&[CudaLibrary::Nvrtc]),
    }
    match products {
        Some(products) => library::install(&[products.file], blas::TABLE)?,
        None => hide(&[CudaLibrary::CublasLt]),
    }
    match convolutions {
        Some(_) => library::install(&["libcudnn.so.9"], dnn::TABLE)?,
        None => hide(&[CudaLibrary::Cudnn]),
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
pub fn gpu() -> Result<Arc<dyn CudaMachine>> {
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
