//! What lies near a GPU in its host, by the kernel's files: cores, memory and NICs; and ranks that are bound to these cores.
//!
//! A file system's root is an argument, so that tests describe a host. Memory follows the cores: Linux gives a thread memory of the
//! NUMA node on which it runs.

use super::this_machine::value;
use allfold_collectives::Rank;
use allfold_cuda::CudaMachine;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that keeps ranks from being bound, if it is 0.
const BIND: &str = "ALLFOLD_BIND";

/// The place of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// Its PCI address.
    pub address: String,
    /// The cores near it, as Linux lists them, such as `0-31,64-95`.
    pub cores: String,
    /// Its NUMA node, if the host has several.
    pub node: Option<u32>,
    /// The NIC that shares the most of its PCIe path, if one does.
    pub nic: Option<String>,
}

/// The place of the GPU with this UUID; `None` where NVIDIA's module or the kernel does not say.
pub fn place(root: &Path, uuid: [u8; 16]) -> Option<GpuPlace> {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let wanted =
        format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    let gpus = fs::read_dir(root.join("proc/driver/nvidia/gpus")).ok()?;
    let is_it = |folder: &PathBuf| {
        let text = fs::read_to_string(folder.join("information")).unwrap_or_default();
        value(&text, "GPU UUID").as_deref() == Some(&wanted)
    };
    let folder = gpus.flatten().map(|entry| entry.path()).find(is_it)?;
    let address = folder.file_name()?.to_string_lossy().into_owned();
    let device = fs::canonicalize(root.join("sys/bus/pci/devices").join(&address)).ok()?;
    let read = |name| fs::read_to_string(device.join(name)).ok().map(|text| text.trim().to_string());
    Some(GpuPlace {
        cores: read("local_cpulist")?,
        node: read("numa_node").and_then(|text| text.parse().ok()),
        nic: nearest_nic(root, &device),
        address,
    })
}

/// The NIC with the longest PCIe path in common with a device: InfiniBand and RoCE before Ethernet.
fn nearest_nic(root: &Path, device: &Path) -> Option<String> {
    ["sys/class/infiniband", "sys/class/net"].into_iter().find_map(|class| {
        let nics = fs::read_dir(root.join(class)).ok()?;
        let near = nics.flatten().filter_map(|entry| {
            let path = fs::canonicalize(entry.path().join("device")).ok()?;
            let common: Vec<_> =
                path.components().zip(device.components()).take_while(|(a, b)| a == b).collect();
            let bridge = |part: &str| part.starts_with("pci");
            let shares = common.iter().any(|(part, _)| part.as_os_str().to_str().is_some_and(bridge));
            shares
                .then(|| (common.len(), std::cmp::Reverse(entry.file_name().to_string_lossy().into_owned())))
        });
        near.max().map(|(_, name)| name.0)
    })
}

/// The numbers of a list such as `0-3,8`; `None` if it is none.
fn numbers(list: &str) -> Option<Vec<usize>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?.min(CpuSet::MAX_CPU))
    };
    let ranges: Option<Vec<_>> = list.split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

/// Binds all threads of this process to the cores near the GPU with this UUID, as far as the process may use them. Returns what was done in
/// words; `None` if the place of the GPU is not known, or `ALLFOLD_BIND` is 0.
pub fn bind(root: &Path, uuid: [u8; 16]) -> Option<String> {
    if std::env::var_os(BIND).is_some_and(|value| value == "0") {
        return None;
    }
    let place = place(root, uuid)?;
    let allowed = sched_getaffinity(None).ok()?;
    let mut near = CpuSet::new();
    let usable = |core: &usize| *core < CpuSet::MAX_CPU && allowed.is_set(*core);
    numbers(&place.cores)?.into_iter().filter(usable).for_each(|core| near.set(core));
    let (cores, address) = (&place.cores, &place.address);
    if near.count() == 0 {
        return Some(format!(
            "not bound: the process may use none of the cores {cores} near its GPU {address}"
        ));
    }
    let threads = fs::read_dir("/proc/self/task").ok()?.flatten();
    let ids = threads.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    for id in ids {
        // A thread that has just ended cannot be bound.
        let _ = sched_setaffinity(Some(id), &near);
    }
    Some(format!("bound to {} of the cores {cores} near its GPU {address}", near.count()))
}

/// Binds this process, which is a rank on a device of a machine, to the cores near the device, and logs what was done.
pub fn bind_rank(machine: &dyn CudaMachine, device: usize, rank: Rank) {
    if let Some(said) = bind(Path::new("/"), machine.identity(device)) {
        tracing::info!("rank {rank} is {said}");
    }
}

#[cfg(test)]
mod tests;
