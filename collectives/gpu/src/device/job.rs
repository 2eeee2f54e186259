//! A collective over buffers on devices, and how it is run.

use crate::registry::Algorithm;
use crate::{DType, Rank, ReduceOp};

/// How a collective is run on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecutionMode {
    /// Step by step, as the schedule says.
    Messages,
    /// Each element's reduction tree at once, from all buffers.
    Fused,
}

/// A collective over buffers on devices.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCollective {
    /// The algorithm, which also says the collective.
    pub algorithm: &'static Algorithm,
    /// The root, where there is one.
    pub root: Rank,
    /// The element type of the buffers.
    pub dtype: DType,
    /// Reduced how.
    pub op: ReduceOp,
    /// Messages, or fused.
    pub form: ExecutionMode,
    /// Pieces that every chunk is cut into; 1 for none.
    pub segments: u32,
}
