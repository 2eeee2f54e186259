//! What a caller asks for.

use crate::{Collective, DType, Operation, Rank, ReduceOp};

/// What a caller asks for. `count` is of the whole buffer, or of one block where the collective is made of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub collective: Collective,
    /// What the caller called it, for errors.
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
