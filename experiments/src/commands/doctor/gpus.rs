//! The driver, its devices and NVIDIA's libraries.

use super::finding::{found, missing};
use super::search::library;
use crate::measure::near_gpu;
use allfold_cuda::{PeerLink, ProbedDevice};
use allfold_report::records::DoctorFinding;
use std::path::{Path, PathBuf};

/// The findings about CUDA, its libraries and NCCL.
pub fn findings() -> Vec<DoctorFinding> {
    let devices = allfold_cuda::probe().map(|probe| probe.devices).unwrap_or_default();
    let mut all = vec![cuda(), cublas(), cudnn(), nccl()];
    all.extend(links(devices.len()));
    all.extend(places(&devices));
    all.extend((!devices.is_empty()).then(plugins));
    all
}

/// The finding about peer access between GPUs; `None` for fewer than two.
fn links(devices: usize) -> Option<DoctorFinding> {
    let pairs = (0..devices).flat_map(|b| (0..b).map(move |a| (a, b)));
    let link = |(a, b)| ((a, b), allfold_cuda::peer_link(a, b).unwrap_or(PeerLink::None));
    let links: Vec<_> = pairs.map(link).collect();
    links.first()?;
    let count = |wanted| links.iter().filter(|(_, link)| *link == wanted).count();
    let apart = count(PeerLink::None);
    let detail = format!(
        "{} pairs: {} over NVLink, {} over PCIe, {apart} without peer access",
        links.len(),
        count(PeerLink::NvLink),
        count(PeerLink::Pcie)
    );
    Some(match links.iter().find(|(_, link)| *link == PeerLink::None) {
        None => found("gpu links", detail),
        Some(((a, b), _)) => missing(
            "gpu links",
            &format!("{detail}, such as GPUs {a} and {b}"),
            match apart == links.len() {
                true => {
                    "NCCL copies through the host then; see `nvidia-smi topo -p2p r`, and that IOMMU and ACS are off"
                }
                false => "NCCL copies through the host between these; see `nvidia-smi topo -p2p r`",
            },
        ),
    })
}

/// The finding about cores, memory and NICs near each GPU; `None` where the kernel does not say.
fn places(devices: &[ProbedDevice]) -> Option<DoctorFinding> {
    let place = |(at, device): (usize, &ProbedDevice)| {
        let place = near_gpu::place(Path::new("/"), device.uuid)?;
        let node = place.node.map_or(String::new(), |node| format!(", NUMA node {node}"));
        let nic = place.nic.map_or(", no NIC near".into(), |nic| format!(", {nic}"));
        Some(format!("GPU {at} ({}): cores {}{node}{nic}", place.address, place.cores))
    };
    let all: Vec<String> = devices.iter().enumerate().filter_map(place).collect();
    (!all.is_empty()).then(|| found("near gpus", all.join("; ")))
}

/// The finding about NCCL's plug-ins, which it looks for by these names or the ones of its variables. None is needed.
fn plugins() -> DoctorFinding {
    let plugin = |kind: &str, variable: &str| {
        let asked = std::env::var(variable).ok().filter(|name| !name.is_empty());
        let file = match &asked {
            None => format!("libnccl-{kind}.so"),
            Some(name) if name.contains(".so") => name.clone(),
            Some(name) => format!("libnccl-{kind}-{name}.so"),
        };
        let is_there = library(&file).or_else(|| Some(file.into()).filter(|path: &PathBuf| path.is_file()));
        match (is_there, asked) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(name)) => format!("{variable}={} is not found", name.escape_debug()),
            (None, None) => "NCCL's own".into(),
        }
    };
    let (net, tuner) = (plugin("net", "NCCL_NET_PLUGIN"), plugin("tuner", "NCCL_TUNER_PLUGIN"));
    found("nccl plug-ins", format!("network: {net}; tuner: {tuner}"))
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
