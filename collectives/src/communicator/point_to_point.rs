//! Point-to-point messages: send and receive.

use super::Communicator;
use crate::schedule::Combine;
use crate::transport::{Event, Frame, LETTERS, Transport};
use crate::work::Work;
use crate::{Buffer, Call, Element, Error, Operation, Rank, Result};
use std::sync::Arc;

impl Communicator {
    /// Sends `data` to another rank, which receives as many elements of the same type. Returns when the message
    /// was sent. Messages between two ranks arrive in order.
    ///
    /// # Errors
    /// [`Error::Argument`] where `to` is this rank or none of the group; those of the group.
    pub fn send<T: Element>(&self, data: &[T], to: Rank) -> Result<()> {
        let (peer, call) = self.message::<T>(data.len(), to, true)?;
        let exchange = |transport: &mut dyn Transport| post(transport, &call, peer, data);
        let result = self.in_flight(&call, peer, exchange);
        self.membership.tell(result)
    }

    /// Receives into `data` what another rank sends.
    ///
    /// # Errors
    /// [`Error::Argument`] where `from` is this rank or none of the group; [`Error::Mismatch`] where the peer sends another
    /// length or type; those of the group.
    pub fn recv<T: Element>(&self, data: &mut [T], from: Rank) -> Result<()> {
        let (peer, call) = self.message::<T>(data.len(), from, false)?;
        let result =
            self.in_flight(&call, peer, |transport| take(transport, &call, (self.rank(), peer), data));
        self.membership.tell(result)
    }

    /// [`Communicator::send`] of a buffer that comes back when the message was sent. It runs on the communication thread, after
    /// the asynchronous operations that were issued before: ranks that both send first and receive after do not wait for each
    /// other, as long as each goes on.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; [`Error::Poisoned`] where the group has failed before; [`Error::System`] where
    /// the communication thread cannot be started.
    pub fn send_async<T: Element>(&self, data: Buffer<T>, to: Rank) -> Result<Work<Buffer<T>>> {
        let (peer, call) = self.message::<T>(data.len(), to, true)?;
        let ticket = self.membership.record_issue(call.as_ref().clone(), Some(peer));
        self.run_later(ticket, move |connection| {
            post(connection.messages(), &call, peer, &data)?;
            Ok(data)
        })
    }

    /// [`Communicator::recv`] into a buffer that comes back with the message.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; [`Error::Poisoned`] where the group has failed before; [`Error::System`] where
    /// the communication thread cannot be started.
    pub fn recv_async<T: Element>(&self, mut data: Buffer<T>, from: Rank) -> Result<Work<Buffer<T>>> {
        let (peer, call) = self.message::<T>(data.len(), from, false)?;
        let (ticket, rank) = (self.membership.record_issue(call.as_ref().clone(), Some(peer)), self.rank());
        self.run_later(ticket, move |connection| {
            take(connection.messages(), &call, (rank, peer), &mut data)?;
            Ok(data)
        })
    }

    /// The peer and the call of a message of so many elements.
    fn message<T: Element>(&self, count: usize, peer: Rank, sends: bool) -> Result<(Rank, Arc<Call>)> {
        let peer = self.peer(peer)?;
        self.membership.check()?;
        Ok((peer, self.letter::<T>(count, peer, sends)))
    }

    /// Runs a point-to-point message's exchange after all that is outstanding, and records it.
    fn in_flight(
        &self,
        call: &Arc<Call>,
        peer: Rank,
        exchange: impl FnOnce(&mut dyn Transport) -> Result<()>,
    ) -> Result<()> {
        let ticket = self.membership.record_issue(call.as_ref().clone(), Some(peer));
        self.drain().and_then(|()| {
            let mut connection = self.connection.borrow_mut();
            self.membership.run_recorded(ticket, self.membership.task, || exchange(connection.messages()))
        })
    }

    fn letter<T: Element>(&self, count: usize, peer: Rank, sends: bool) -> Arc<Call> {
        let mut letters = self.letters.borrow_mut();
        let numbers = if sends { &mut letters.sent } else { &mut letters.received };
        let number = numbers.entry(peer).or_default();
        let sequence = *number;
        *number += 1;
        Arc::new(Call::plain(Operation::PointToPoint, sequence, count as u64, T::DTYPE))
    }

    fn peer(&self, peer: Rank) -> Result<Rank> {
        let last = self.size() - 1;
        if peer.0 > last {
            return Err(Error::Argument(format!(
                "rank {peer} is outside the group: its ranks are 0 to {last}"
            )));
        }
        if peer == self.rank() {
            return Err(Error::Argument(format!(
                "rank {peer} cannot send to itself; copy the buffer instead"
            )));
        }
        Ok(peer)
    }
}

/// Sends `data` to `peer`.
fn post<T: Element>(transport: &mut dyn Transport, call: &Arc<Call>, peer: Rank, data: &[T]) -> Result<()> {
    transport.enter(call)?;
    let mut payload = transport.room(size_of_val(data));
    payload.copy_from_slice(bytemuck::cast_slice(data));
    transport.post_send(peer, LETTERS, Frame { call: call.clone(), round: 0, payload });
    transport.wait(0)?;
    transport.done();
    Ok(())
}

/// Receives into `data`, on the first of these ranks, what the second one sends.
fn take<T: Element>(
    transport: &mut dyn Transport,
    call: &Arc<Call>,
    (rank, peer): (Rank, Rank),
    data: &mut [T],
) -> Result<()> {
    transport.enter(call)?;
    let bytes = size_of_val(data);
    transport.post_recv(peer, LETTERS, bytes, Combine::Copy);
    if let Event::Received { frame, .. } = transport.wait(0)? {
        if *frame.call != **call || frame.payload.len() != bytes {
            let (mine, theirs) = (call.as_ref().clone().into(), frame.call.as_ref().clone().into());
            return Err(transport.fail(Error::Mismatch { rank, mine, peer, theirs }));
        }
        data.copy_from_slice(bytemuck::cast_slice(&frame.payload));
    }
    transport.done();
    Ok(())
}
