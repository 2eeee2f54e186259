//! The driver, its devices and NVIDIA's libraries.

use super::finding::{found, missing};
use allfold_report::records::DoctorFinding;

/// The findings about CUDA, its libraries and NCCL.
pub fn findings() -> Vec<DoctorFinding> {
    vec![cuda(), cublas(), cudnn(), nccl()]
}

/// The finding about the CUDA driver, its devices and the compiler, looked up as the kernels do.
fn cuda() -> DoctorFinding {
    match allfold_cuda::probe() {
        Ok(probe) => {
            let device = |d: &allfold_cuda::ProbedDevice| {
                format!("{}, sm_{}, {:.0} GiB", d.name, d.arch, d.memory as f64 / f64::from(1 << 30))
            };
            let devices: Vec<String> = probe.devices.iter().map(device).collect();
            let ((major, minor), (nvrtc, nvrtc_minor)) = (probe.cuda, probe.nvrtc);
            let versions = format!("CUDA {major}.{minor}, NVRTC {nvrtc}.{nvrtc_minor}");
            found("cuda", format!("{} GPUs ({}), {versions}", devices.len(), devices.join("; ")))
        }
        Err(allfold_cuda::Error::Missing { library, looked_for }) => {
            let advice =
                format!("{}; without it everything runs on CPUs and on the simulator", library.how_to_get());
            missing("cuda", &looked_for, &advice)
        }
        Err(error) => {
            missing("cuda", &error.to_string(), "see that `nvidia-smi` lists a GPU, and CUDA_VISIBLE_DEVICES")
        }
    }
}

fn cublas() -> DoctorFinding {
    multiplies("cublaslt", allfold_cuda::libraries::CudaLibrary::CublasLt)
}

fn cudnn() -> DoctorFinding {
    multiplies("cudnn", allfold_cuda::libraries::CudaLibrary::Cudnn)
}

/// The finding about a CUDA library of matrix products or convolutions.
fn multiplies(item: &str, library: allfold_cuda::libraries::CudaLibrary) -> DoctorFinding {
    match allfold_cuda::vendor::version(library) {
        Ok((major, minor, patch)) => {
            let place = library.load().map_or(String::new(), |path| format!(", {}", path.display()));
            found(item, format!("{major}.{minor}.{patch}{place}"))
        }
        Err(allfold_cuda::Error::Missing { looked_for, .. }) => {
            missing(item, &looked_for, library.how_to_get())
        }
        Err(error) => missing(item, &error.to_string(), library.how_to_get()),
    }
}

fn nccl() -> DoctorFinding {
    let library = allfold_cuda::libraries::CudaLibrary::Nccl;
    match allfold_gpu::nccl::version() {
        Ok((major, minor, patch)) => {
            let place = library.load().map_or(String::new(), |path| format!(", {}", path.display()));
            let graphs = std::env::var("NCCL_GRAPH_REGISTER").unwrap_or_else(|_| "1".into());
            found(
                "nccl",
                format!("{major}.{minor}.{patch}{place}, NCCL_GRAPH_REGISTER={}", graphs.escape_debug()),
            )
        }
        Err(_) => missing("nccl", "no libnccl.so.2, or none that is 2.18 or newer", library.how_to_get()),
    }
}
