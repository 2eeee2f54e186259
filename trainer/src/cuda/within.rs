//! The device of a replica and its deadline.

use allfold_collectives::tcp::Deadlines;
use allfold_cuda::CudaMachine;
use std::sync::Arc;
use std::time::Duration;

/// The device of a rank, and the deadline of the rank's waits.
#[derive(Clone)]
pub struct Within {
    /// The machine that runs kernels.
    pub machine: Arc<dyn CudaMachine>,
    /// The device's number on `machine`.
    pub device: usize,
    /// How long the rank waits for other ranks to join, and for its device to finish a step.
    pub deadline: Duration,
}

impl From<(Arc<dyn CudaMachine>, usize)> for Within {
    /// A device of a machine, with the deadline that operations of ranks have by default.
    fn from((machine, device): (Arc<dyn CudaMachine>, usize)) -> Within {
        Within { machine, device, deadline: Deadlines::default().operation }
    }
}
