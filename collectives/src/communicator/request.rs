//! The request of a caller.

use crate::{Collective, DType, Operation, Rank, ReduceOp};

/// A collective that a caller asks for. `count` is of the whole buffer, or of one block where the collective is made of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub collective: Collective,
    /// The operation's name in errors.
    pub operation: Operation,
    pub count: usize,
    pub dtype: DType,
    pub op: Option<ReduceOp>,
    pub root: Option<Rank>,
}

impl Request {
    pub fn reduced(self, op: ReduceOp) -> Request {
        Request { op: Some(op), ..self }
    }

    pub fn rooted(self, root: Rank) -> Request {
        Request { root: Some(root), ..self }
    }
}
