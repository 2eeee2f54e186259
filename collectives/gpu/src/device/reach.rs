//! Checks which devices' kernels can access each other's memory.

use crate::{Error, Result};
use allfold_cuda::CudaMachine;

/// The most ranks that share buffers: the fused kernel's tables have a bit for each.
pub(super) const MOST_RANKS: u32 = 64;

/// Refuses a set of devices in which kernels of one device cannot access the memory of another.
pub(super) fn reachable(
    machine: &dyn CudaMachine,
    devices: impl Iterator<Item = usize> + Clone,
) -> Result<()> {
    match unreachable_pair(machine, devices) {
        Some((a, b)) => Err(Error::Argument(format!(
            "device {a} does not reach the memory of device {b} (no peer access): use `--backend nccl`, or show one device \
             by CUDA_VISIBLE_DEVICES"
        ))),
        None => Ok(()),
    }
}

/// The first pair of devices in which kernels of one cannot access the memory of the other.
pub(super) fn unreachable_pair(
    machine: &dyn CudaMachine,
    devices: impl Iterator<Item = usize> + Clone,
) -> Option<(usize, usize)> {
    let pairs = devices.clone().flat_map(|a| devices.clone().map(move |b| (a, b)));
    pairs.filter(|_| !machine.seeded(8)).find(|(a, b)| !machine.reaches(*a, *b))
}
