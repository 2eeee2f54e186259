//! Where a replica is, and how long it waits.

use allfold_kernels::cuda::CudaMachine;
use std::sync::Arc;
use std::time::Duration;

/// How long a rank waits for the other ranks and for its device by default.
const DEADLINE: Duration = Duration::from_secs(120);

/// A device, and how long a rank waits there.
#[derive(Clone)]
pub struct Within {
    /// The machine that runs kernels.
    pub machine: Arc<dyn CudaMachine>,
    /// Which of its devices.
    pub device: usize,
    /// How long the rank waits for others to join, and for its device to finish a step.
    pub deadline: Duration,
}

impl From<(Arc<dyn CudaMachine>, usize)> for Within {
    /// This device with a deadline of two minutes.
    fn from((machine, device): (Arc<dyn CudaMachine>, usize)) -> Within {
        Within { machine, device, deadline: DEADLINE }
    }
}
