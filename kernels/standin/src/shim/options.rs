//! What a shim is like.

use std::time::Duration;

/// The order in which the fibres of a block run. A result that depends on it lacks a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiberOrder {
    /// Thread 0 runs first.
    Upwards,
    /// The last thread first.
    Downwards,
}

/// What a shim is like.
#[derive(Clone, Copy, Debug)]
pub struct ShimOptions {
    /// The order in which the fibres of a block run.
    pub order: FiberOrder,
    /// Devices.
    pub devices: usize,
    /// Whether kernels reach the memory of other devices than their own.
    pub peers: bool,
    /// Bytes of memory of each device.
    pub memory: u64,
    /// Whether all devices are one GPU, seen several times.
    pub one_gpu: bool,
    /// Defects that a test puts back in, by their number in `docs/GPU.md`: see [`allfold_kernels::cuda::CudaMachine::seeded`].
    pub seeded: &'static [u8],
    /// A wait of the host without a deadline of its own that lasts longer than this is an error: it would never end.
    pub timeout: Duration,
    /// Whether all memory that a launch does not name holds other values while it runs.
    pub audit: bool,
}

impl Default for ShimOptions {
    fn default() -> ShimOptions {
        ShimOptions {
            order: FiberOrder::Upwards,
            devices: 1,
            peers: true,
            memory: u64::MAX,
            one_gpu: false,
            seeded: &[],
            timeout: Duration::from_secs(60),
            audit: false,
        }
    }
}
