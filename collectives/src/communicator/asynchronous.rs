//! The asynchronous collectives: they take a buffer and return it through [`Work`].

use super::request::Request;
use super::{Communicator, in_place};
use crate::transport::Connection;
use crate::work::{Slot, Work};
use crate::{Buffer, Collective, Element, Error, Rank, ReduceOp, Result};
use allfold_base::lock;
use std::sync::{Arc, Mutex};

/// Asynchronous operations run on one communication thread per communicator, in the order in which they were
/// issued, while the rank continues. Errors of the call itself are returned at once, those of the group by
/// [`Work::wait`].
impl Communicator {
    /// [`Communicator::all_reduce`] on a buffer that comes back when it is done.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; [`Error::Poisoned`] where the group has failed before; [`Error::System`] where
    /// the communication thread cannot be started.
    pub fn all_reduce_async<T: Element>(&self, data: Buffer<T>, op: ReduceOp) -> Result<Work<Buffer<T>>> {
        let request = self.request::<T>(Collective::AllReduce, data.len()).reduced(op);
        self.record_issue(request, data, |data| data)
    }

    /// [`Communicator::broadcast`] of a buffer that comes back when it is done.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; [`Error::Poisoned`] where the group has failed before; [`Error::System`] where
    /// the communication thread cannot be started.
    pub fn broadcast_async<T: Element>(&self, data: Buffer<T>, root: Rank) -> Result<Work<Buffer<T>>> {
        let request = self.request::<T>(Collective::Broadcast, data.len()).rooted(self.root(root)?);
        self.record_issue(request, data, |data| data)
    }

    /// [`Communicator::all_gather`]: takes this rank's block, gives back all of them, in order of ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; [`Error::Poisoned`] where the group has failed before; [`Error::System`] where
    /// the communication thread cannot be started.
    pub fn all_gather_async<T: Element>(&self, block: Buffer<T>) -> Result<Work<Buffer<T>>> {
        let request = self.request::<T>(Collective::AllGather, block.len());
        let mut all = self.buffer(self.times(block.len())?);
        all[self.block(block.len())].copy_from_slice(&block);
        self.record_issue(request, all, |data| data)
    }

    /// [`Communicator::reduce_scatter`]: takes one block per rank, gives back this rank's, reduced.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; [`Error::Poisoned`] where the group has failed before; [`Error::System`] where
    /// the communication thread cannot be started.
    pub fn reduce_scatter_async<T: Element>(&self, data: Buffer<T>, op: ReduceOp) -> Result<Work<Buffer<T>>> {
        let (len, n) = (data.len(), self.size() as usize);
        if !len.is_multiple_of(n) {
            return Err(Error::Argument(format!(
                "reduce_scatter takes one block per rank: {len} elements do not divide among {n} ranks"
            )));
        }
        let request = self.request::<T>(Collective::ReduceScatter, len / n).reduced(op);
        let own = self.block(len / n);
        self.record_issue(request, data, move |data| data[own].to_vec().into())
    }

    fn record_issue<T: Element>(
        &self,
        request: Request,
        mut data: Buffer<T>,
        result: impl FnOnce(Buffer<T>) -> Buffer<T> + Send + 'static,
    ) -> Result<Work<Buffer<T>>> {
        let prepared = self.prepare(request)?;
        let stream = self.membership.stream()?;
        let sequence = self.membership.number();
        let slot: Slot<Buffer<T>> = Arc::new(Mutex::new(None));
        let ticket = self.membership.record_issue(prepared.call(sequence), None);
        let (place, membership, task) = (slot.clone(), self.membership.clone(), stream.task);
        let job = move |connection: &mut Connection| {
            let done = membership.run_recorded(ticket, task, || {
                prepared.run(sequence, in_place(&mut data), connection, &|| ())
            });
            *lock(&place) = Some(done.map(|()| (result(data), membership.backend.clock().now(task))));
        };
        let number = stream.push(&self.membership, Some(Box::new(job)));
        Ok(Work::new(self.membership.clone(), stream.done, number, slot))
    }
}
