//! The blocking collectives on the caller's slices.

use super::{Communicator, expect, in_place, out_of_place};
use crate::{Collective, Element, Rank, ReduceOp, Result};
use allfold_kernels::fused::CallBuffers;

/// `n` is [`Communicator::size`]. A row of [`crate::meaning`] gives the input and the output of each rank.
impl Communicator {
    /// Replaces `data` on every rank by its reduction over all ranks, element by element.
    ///
    /// # Errors
    /// The errors of the group: see [`Communicator`].
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<()> {
        let request = self.request::<T>(Collective::AllReduce, data.len()).reduced(op);
        self.blocking(request, in_place(data))
    }

    /// Leaves the reduction of `input` over all ranks in `output`, which has the same length.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where the lengths differ; the errors of the group.
    pub fn all_reduce_into<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        expect("the output of all_reduce", output.len(), input.len())?;
        let request = self.request::<T>(Collective::AllReduce, input.len()).reduced(op);
        self.blocking(request, out_of_place(input, output))
    }

    /// Replaces `data` on every rank by the root's `data`.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where `root` is no rank of the group; the errors of the group.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: Rank) -> Result<()> {
        let request = self.request::<T>(Collective::Broadcast, data.len()).rooted(self.root(root)?);
        self.blocking(request, in_place(data))
    }

    /// Leaves every rank's `block`, in order of ranks, in `output`, which is `n` times as long.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where `output` has another length; the errors of the group.
    pub fn all_gather<T: Element>(&self, block: &[T], output: &mut [T]) -> Result<()> {
        expect("the output of all_gather", output.len(), self.times(block.len())?)?;
        let request = self.request::<T>(Collective::AllGather, block.len());
        self.blocking(request, out_of_place(block, output))
    }

    /// [`Communicator::all_gather`] in place: `all` holds a block per rank, of which only this rank's own is read.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where the blocks do not divide among the ranks; the errors of the group.
    pub fn all_gather_in_place<T: Element>(&self, all: &mut [T]) -> Result<()> {
        let len = self.block_len("all_gather", all.len())?;
        self.blocking(self.request::<T>(Collective::AllGather, len), in_place(all))
    }

    /// Leaves in `block` this rank's block of the reduction of `input`, which is `n` times as long.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where `input` has another length; the errors of the group.
    pub fn reduce_scatter<T: Element>(&self, input: &[T], block: &mut [T], op: ReduceOp) -> Result<()> {
        expect("the input of reduce_scatter", input.len(), self.times(block.len())?)?;
        let request = self.request::<T>(Collective::ReduceScatter, block.len()).reduced(op);
        self.blocking(request, out_of_place(input, block))
    }

    /// Replaces `data` on the root by its reduction over all ranks. On the other ranks `data` is used as scratch
    /// and is undefined afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where `root` is no rank of the group; the errors of the group.
    pub fn reduce<T: Element>(&self, data: &mut [T], op: ReduceOp, root: Rank) -> Result<()> {
        let request = self.request::<T>(Collective::Reduce, data.len()).reduced(op).rooted(self.root(root)?);
        self.blocking(request, in_place(data))
    }

    /// Leaves every rank's `block`, in order of ranks, in the root's `output`, which is `n` times as long. On the
    /// other ranks `output` is left alone and may be empty.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where `root` is no rank of the group, or the root's `output` has another length; the errors of the
    /// group.
    pub fn gather<T: Element>(&self, block: &[T], output: &mut [T], root: Rank) -> Result<()> {
        let request = self.request::<T>(Collective::Gather, block.len()).rooted(self.root(root)?);
        let all = self.times(block.len())?;
        if root == self.rank() {
            expect("the output of gather on its root", output.len(), all)?;
            return self.blocking(request, out_of_place(block, output));
        }
        self.blocking(request, out_of_place(block, &mut []))
    }

    /// Leaves in `block` this rank's block of the root's `input`, which is `n` times as long. On the other ranks
    /// `input` is ignored and may be empty.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where `root` is no rank of the group, or the root's `input` has another length; the errors of the
    /// group.
    pub fn scatter<T: Element>(&self, input: &[T], block: &mut [T], root: Rank) -> Result<()> {
        let request = self.request::<T>(Collective::Scatter, block.len()).rooted(self.root(root)?);
        let all = self.times(block.len())?;
        if root == self.rank() {
            expect("the input of scatter on its root", input.len(), all)?;
            return self.blocking(request, out_of_place(input, block));
        }
        self.blocking(request, out_of_place(&[], block))
    }

    /// Sends block s of `input` to rank s, and leaves what rank s sent as block s of `output`. Both have one length,
    /// which `n` divides.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where the lengths differ or `n` does not divide them; the errors of the group.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        expect("the output of all_to_all", output.len(), input.len())?;
        let len = self.block_len("all_to_all", input.len())?;
        self.blocking(self.request::<T>(Collective::AllToAll, len), out_of_place(input, output))
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// The errors of the group.
    pub fn barrier(&self) -> Result<()> {
        self.blocking(self.request::<u8>(Collective::Barrier, 0), CallBuffers::InPlace(&mut []))
    }

    /// Every rank sends `data` to the next rank and replaces it by the previous rank's data. Rank 0 follows the last rank.
    ///
    /// # Errors
    /// The errors of the group.
    pub fn shift<T: Element>(&self, data: &mut [T]) -> Result<()> {
        self.blocking(self.request::<T>(Collective::SendRecv, data.len()), in_place(data))
    }
}
