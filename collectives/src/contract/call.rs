//! A call: the arguments that all ranks must agree on.
//!
//! The call table compares calls when ranks enter an operation. Every frame carries its sender's call, which the receiver compares with
//! its own call before it uses the payload.

use crate::{Collective, DType, Rank, ReduceOp};
use std::fmt;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A collective.
    Collective(Collective),
    /// Splitting a communicator.
    Split,
    /// A point-to-point message, numbered per sender and receiver.
    PointToPoint,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Collective(collective) => collective.fmt(f),
            Operation::Split => f.write_str("split"),
            Operation::PointToPoint => f.write_str("send/recv"),
        }
    }
}

/// The part of a call that all ranks must agree on. Ranks that make different calls at the same position of the sequence get an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The kind of the operation.
    pub operation: Operation,
    /// The number of earlier operations of this communicator; for a message, the number of earlier messages from its sender to its
    /// receiver.
    pub sequence: u64,
    /// The number of elements: of the whole buffer, or of one rank's block where the collective is made of blocks.
    pub count: u64,
    /// The type of the elements.
    pub dtype: DType,
    /// The operator, if the collective reduces.
    pub op: Option<ReduceOp>,
    /// The root, if the collective has one.
    pub root: Option<Rank>,
    /// The algorithm's name; empty if there is no choice.
    pub algorithm: &'static str,
    /// Number of segments per chunk.
    pub segments: u32,
}

impl Call {
    /// A call with no operator, root or algorithm.
    pub fn plain(operation: Operation, sequence: u64, count: u64, dtype: DType) -> Call {
        Call { operation, sequence, count, dtype, op: None, root: None, algorithm: "", segments: 1 }
    }
}

impl fmt::Display for Call {
    /// `all_reduce(1024 x f32, sum, halving_doubling) as operation 4`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} x {}", self.operation, self.count, self.dtype)?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        if !self.algorithm.is_empty() {
            write!(f, ", {}", self.algorithm)?;
        }
        if self.segments > 1 {
            write!(f, " in {} segments", self.segments)?;
        }
        write!(f, ") as operation {}", self.sequence)
    }
}
