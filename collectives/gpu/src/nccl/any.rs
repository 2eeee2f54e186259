//! Any collective for which [`NcclComm`] has a method, selected by a [`Collective`].

use super::comm::NcclComm;
use crate::{Collective, DType, Error, Rank, ReduceOp, Result};
use allfold_cuda::Slice;

/// A collective over a rank's buffers: the input and, on ranks that get a result, the output.
#[derive(Clone, Copy)]
pub struct NcclCall<'a> {
    /// The collective to be called.
    pub collective: Collective,
    /// The element type.
    pub dtype: DType,
    /// The reduction operator, for collectives that reduce.
    pub op: ReduceOp,
    /// The root, for collectives that have one.
    pub root: Rank,
    /// The rank's input; ignored on ranks that give no input.
    pub input: Slice<'a>,
    /// The rank's result; not written on a rank without a result. In a reduce it has the input's length on every rank.
    pub output: Slice<'a>,
}

/// Whether [`NcclComm`] has a method for a collective; other collectives need a schedule.
pub fn has(collective: Collective) -> bool {
    use Collective::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    let all = [AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, AllToAll, Gather, Scatter, Barrier];
    all.contains(&collective)
}

impl NcclComm {
    /// Issues a collective on NCCL.
    ///
    /// # Errors
    /// The errors of the collective's own method; [`Error::Argument`] for a collective without a method.
    pub fn collective(&mut self, call: NcclCall<'_>) -> Result<()> {
        let NcclCall { collective, dtype, op, root, input, output } = call;
        let is_root = self.rank() == root;
        match collective {
            Collective::AllReduce => self.all_reduce(dtype, op, input, output),
            Collective::Broadcast => self.broadcast_into(input, output, root),
            Collective::Reduce => self.reduce(dtype, op, input, output, root),
            Collective::AllGather => self.all_gather(input, output),
            Collective::ReduceScatter => self.reduce_scatter(dtype, op, input, output),
            Collective::AllToAll => self.all_to_all(input, output),
            Collective::Gather => self.gather(input, is_root.then_some(output), root),
            Collective::Scatter => self.scatter(is_root.then_some(input), output, root),
            Collective::Barrier => self.barrier(),
            other => Err(Error::Argument(format!(
                "NCCL has no {other}; use exchange = \"scheduled\", which runs a schedule over NCCL's messages"
            ))),
        }
    }
}
