//! The request of a caller.

use crate::{Collective, DType, Operation, Rank, ReduceOp};

/// A call of a collective. `count`: elements of the whole buffer, or of one block where the collective is made of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub collective: Collective,
    /// The operation that errors and the call name, because a split runs as an all-gather.
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
