//! A collective over device buffers, and the form in which it is executed.

use crate::registry::Algorithm;
use crate::{DType, Rank, ReduceOp};

/// The form in which a collective is executed on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExecutionMode {
    /// Step by step, as in the schedule: copies and reductions between ranks.
    Messages,
    /// One kernel that evaluates each element's reduction tree over all buffers.
    Fused,
}

/// A collective over buffers on devices.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCollective {
    /// The algorithm, which also determines the collective.
    pub algorithm: &'static Algorithm,
    /// The root, for collectives that have one.
    pub root: Rank,
    /// The element type of the buffers.
    pub dtype: DType,
    /// The reduction operator.
    pub op: ReduceOp,
    /// The form of execution.
    pub mode: ExecutionMode,
    /// The number of pieces that every chunk is cut into; 1 for whole chunks.
    pub segments: u32,
}
