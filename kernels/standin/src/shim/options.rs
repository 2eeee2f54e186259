//! The options of a shim.

use std::time::Duration;

/// The order in which the fibres of a block run. A kernel whose result depends on this order lacks a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiberOrder {
    /// Thread 0 runs first.
    Upwards,
    /// The last thread runs first.
    Downwards,
}

/// The options of a shim.
#[derive(Clone, Copy, Debug)]
pub struct ShimOptions {
    /// The order in which the fibres of a block run.
    pub order: FiberOrder,
    /// The number of devices.
    pub devices: usize,
    /// Whether kernels can access the memory of other devices.
    pub peers: bool,
    /// The memory of each device in bytes.
    pub memory: u64,
    /// Whether all devices are the same GPU, listed several times.
    pub one_gpu: bool,
    /// The defects that a test puts back, by their numbers in `docs/GPU.md`; see [`allfold_cuda::CudaMachine::seeded`].
    pub seeded: &'static [u8],
    /// The longest wait of the host without a deadline of its own; a longer wait is an error, since it would never end.
    pub timeout: Duration,
    /// Whether memory that a launch does not name holds changed values while the kernel runs, which exposes accesses to it.
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
