//! Installation of the stand-ins in a process.

use super::options::StandinOptions;
use super::{blas, dnn, library, nvrtc, tables, world};
use allfold_cuda::libraries::{CudaLibrary, hide};
use allfold_cuda::{CudaMachine, Error, Gpu, Result, seed_defects};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Makes the stand-ins this process's CUDA. Call this once, before any other use of CUDA.
///
/// # Errors
/// The error of a compilation or load, or [`Error::Argument`] on the second call.
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

/// Opens this process's GPUs by [`Gpu::open`], after installing stand-ins if the environment variable `ALLFOLD_STANDIN` requests them.
/// Tests that run on a GPU open it by this function.
///
/// # Errors
/// The errors of [`Gpu::open`] and [`install`], and [`Error::Argument`] if the variable is not a number of GPUs.
pub fn gpu() -> Result<Arc<dyn CudaMachine>> {
    by_environment()?;
    Gpu::open()
}

/// Installs a stand-in with the number of GPUs in the environment variable `ALLFOLD_STANDIN`, if it is set and no stand-in is installed
/// yet. So a GPU test can run without a GPU. Streams have shorter delays than by default, since such tests have many tasks.
fn by_environment() -> Result<()> {
    static DONE: OnceLock<Result<()>> = OnceLock::new();
    let Ok(text) = std::env::var("ALLFOLD_STANDIN") else { return Ok(()) };
    let wanted = || match text.parse() {
        _ if world::here().is_begun() => Ok(()),
        Ok(devices) => {
            let delay = Duration::from_micros(20);
            install(StandinOptions { devices, delay, ..StandinOptions::default() })
        }
        Err(_) => {
            Err(Error::Argument(format!("ALLFOLD_STANDIN is {text}; it must be a number of GPUs, such as 2")))
        }
    };
    DONE.get_or_init(wanted).clone()
}
