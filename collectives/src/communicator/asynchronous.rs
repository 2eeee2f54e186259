//! The asynchronous collectives: they take a buffer and return it through [`Work`].

use super::request::Request;
use super::{Communicator, in_place};
use crate::flight::Ticket;
use crate::transport::Connection;
use crate::work::{Slot, Work};
use crate::{Buffer, Collective, Element, Error, Rank, ReduceOp, Result};
use allfold_base::lock;
use std::sync::{Arc, Mutex};

/// Asynchronous operations run on one communication thread per communicator, in the order in which they were issued, while the rank
/// continues. Errors of the call itself are returned immediately, those of the group by [`Work::wait`].
impl Communicator {
    /// [`Communicator::all_reduce`] on a buffer that [`Work::wait`] returns when the operation is done.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; [`Error::Poisoned`] where the group has failed before; [`Error::System`] where
    /// the communication thread cannot be started.
    pub fn all_reduce_async<T: Element>(&self, data: Buffer<T>, op: ReduceOp) -> Result<Work<Buffer<T>>> {
        let request = self.request::<T>(Collective::AllReduce, data.len()).reduced(op);
        self.record_issue(request, data, |data| data)
    }

    /// [`Communicator::broadcast`] of a buffer that [`Work::wait`] returns when the operation is done.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn broadcast_async<T: Element>(&self, data: Buffer<T>, root: Rank) -> Result<Work<Buffer<T>>> {
        let request = self.request::<T>(Collective::Broadcast, data.len()).rooted(self.root(root)?);
        self.record_issue(request, data, |data| data)
    }

    /// [`Communicator::all_gather`]: takes this rank's block and returns the blocks of all ranks, in order of ranks.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn all_gather_async<T: Element>(&self, block: Buffer<T>) -> Result<Work<Buffer<T>>> {
        let mut all = self.buffer(self.times(block.len())?);
        all[self.block(block.len())].copy_from_slice(&block);
        self.all_gather_in_place_async(all)
    }

    /// [`Communicator::all_gather`] in place: takes a block per rank, of which only this rank's is read, and returns all blocks filled.
    ///
    /// # Errors
    /// [`Error::Argument`] where the blocks do not divide among the ranks; the errors of [`Communicator::all_reduce_async`].
    pub fn all_gather_in_place_async<T: Element>(&self, all: Buffer<T>) -> Result<Work<Buffer<T>>> {
        let len = self.block_len("all_gather", all.len())?;
        self.record_issue(self.request::<T>(Collective::AllGather, len), all, |data| data)
    }

    /// [`Communicator::reduce_scatter`]: takes one block per rank and returns this rank's block, reduced.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn reduce_scatter_async<T: Element>(&self, data: Buffer<T>, op: ReduceOp) -> Result<Work<Buffer<T>>> {
        let len = self.block_len("reduce_scatter", data.len())?;
        let request = self.request::<T>(Collective::ReduceScatter, len).reduced(op);
        let own = self.block(len);
        self.record_issue(request, data, move |data| data[own].to_vec().into())
    }

    /// [`Communicator::reduce_scatter`] in place: takes one block per rank and returns all of them. This rank's block is reduced; the
    /// other blocks are undefined afterwards.
    ///
    /// # Errors
    /// [`Error::Argument`] where the blocks do not divide among the ranks; the errors of [`Communicator::all_reduce_async`].
    pub fn reduce_scatter_in_place_async<T: Element>(
        &self,
        data: Buffer<T>,
        op: ReduceOp,
    ) -> Result<Work<Buffer<T>>> {
        let len = self.block_len("reduce_scatter", data.len())?;
        self.record_issue(self.request::<T>(Collective::ReduceScatter, len).reduced(op), data, |data| data)
    }

    /// [`Communicator::shift`] of a buffer, which [`Work::wait`] returns with the previous rank's data.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn shift_async<T: Element>(&self, data: Buffer<T>) -> Result<Work<Buffer<T>>> {
        self.record_issue(self.request::<T>(Collective::SendRecv, data.len()), data, |data| data)
    }

    /// The length of each rank's block where `len` elements are one block per rank.
    pub(super) fn block_len(&self, collective: &str, len: usize) -> Result<usize> {
        let n = self.size() as usize;
        if !len.is_multiple_of(n) {
            return Err(Error::Argument(format!(
                "{collective} takes one block per rank: {len} elements do not divide among {n} ranks"
            )));
        }
        Ok(len / n)
    }

    fn record_issue<T: Element>(
        &self,
        request: Request,
        mut data: Buffer<T>,
        result: impl FnOnce(Buffer<T>) -> Buffer<T> + Send + 'static,
    ) -> Result<Work<Buffer<T>>> {
        let prepared = self.prepare(request)?;
        let sequence = self.membership.number();
        let ticket = self.membership.record_issue(prepared.call(sequence), None);
        self.run_later(ticket, move |connection| {
            prepared.run(sequence, in_place(&mut data), connection, &|| ())?;
            Ok(result(data))
        })
    }

    /// Runs an operation on the communication thread, after the operations that were issued before it.
    pub(super) fn run_later<T: Element>(
        &self,
        ticket: Ticket,
        run: impl FnOnce(&mut Connection) -> Result<Buffer<T>> + Send + 'static,
    ) -> Result<Work<Buffer<T>>> {
        let stream = self.membership.stream()?;
        let slot: Slot<Buffer<T>> = Arc::new(Mutex::new(None));
        let (place, membership, task) = (slot.clone(), self.membership.clone(), stream.task);
        let job = move |connection: &mut Connection| {
            let done = membership.run_recorded(ticket, task, || run(connection));
            *lock(&place) = Some(done.map(|buffer| (buffer, membership.backend.clock().now(task))));
        };
        let number = stream.push(&self.membership, Some(Box::new(job)));
        Ok(Work::new(self.membership.clone(), stream.done, number, slot))
    }
}
