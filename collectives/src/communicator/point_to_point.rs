//! Point-to-point messages: send and receive.

use super::Communicator;
use crate::schedule::Combine;
use crate::transport::{Event, Frame, POINT_TO_POINT, Transport};
use crate::work::Work;
use crate::{Buffer, Call, Element, Error, Operation, Rank, Result};
use std::sync::Arc;

impl Communicator {
    /// Sends `data` to another rank, which receives as many elements of the same type. Returns when the message has been sent. Messages
    /// between two ranks arrive in order.
    ///
    /// # Errors
    /// [`Error::Argument`] where `to` is this rank or no rank of the group; the errors of the group.
    pub fn send<T: Element>(&self, data: &[T], to: Rank) -> Result<()> {
        let (peer, call) = self.message::<T>(data.len(), to, true)?;
        let exchange = |transport: &mut dyn Transport| post(transport, &call, peer, data);
        let result = self.in_flight(&call, peer, exchange);
        self.membership.report(result)
    }

    /// Receives into `data` what another rank sends.
    ///
    /// # Errors
    /// [`Error::Argument`] where `from` is this rank or no rank of the group; [`Error::Mismatch`] where the peer sends another
    /// length or type; the errors of the group.
    pub fn recv<T: Element>(&self, data: &mut [T], from: Rank) -> Result<()> {
        let (peer, call) = self.message::<T>(data.len(), from, false)?;
        let result = self.in_flight(&call, peer, |transport| take(transport, &call, self.rank(), peer, data));
        self.membership.report(result)
    }

    /// [`Communicator::send`] of a buffer that [`Work::wait`] returns when the message has been sent. The send runs on the communication
    /// thread, after the asynchronous operations that were issued before. Later operations of the communicator wait for the send: two
    /// ranks that both send first and then receive need a communicator for each direction.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; the other errors of [`Communicator::all_reduce_async`].
    pub fn send_async<T: Element>(&self, data: Buffer<T>, to: Rank) -> Result<Work<Buffer<T>>> {
        let (peer, call) = self.message::<T>(data.len(), to, true)?;
        let ticket = self.membership.record_issue(call.as_ref().clone(), Some(peer));
        self.run_later(ticket, move |connection| {
            post(connection.messages(), &call, peer, &data)?;
            Ok(data)
        })
    }

    /// [`Communicator::recv`] into a buffer that [`Work::wait`] returns with the message.
    ///
    /// # Errors
    /// [`Error::Argument`] as the blocking form; the other errors of [`Communicator::all_reduce_async`].
    pub fn recv_async<T: Element>(&self, mut data: Buffer<T>, from: Rank) -> Result<Work<Buffer<T>>> {
        let (peer, call) = self.message::<T>(data.len(), from, false)?;
        let (ticket, rank) = (self.membership.record_issue(call.as_ref().clone(), Some(peer)), self.rank());
        self.run_later(ticket, move |connection| {
            take(connection.messages(), &call, rank, peer, &mut data)?;
            Ok(data)
        })
    }

    /// This rank's tagged messages in the group, for ranks that are connected over TCP. A receive names a tag, and a source
    /// or any source. Any thread may receive, and any number of receives may wait at a time.
    ///
    /// # Errors
    /// [`Error::Argument`] where ranks are not connected over TCP: use [`Communicator::send`] there.
    pub fn messages(&self) -> Result<crate::tcp::Messages> {
        self.membership.backend.clone().messages(self.membership.member).ok_or_else(|| {
            Error::Argument(
                "tagged messages are for ranks that are processes and have joined over TCP".into(),
            )
        })
    }

    /// The peer and the call of a message of `count` elements.
    pub(super) fn message<T: Element>(
        &self,
        count: usize,
        peer: Rank,
        sends: bool,
    ) -> Result<(Rank, Arc<Call>)> {
        let peer = self.peer(peer)?;
        self.membership.check()?;
        Ok((peer, self.numbered_call::<T>(count, peer, sends)))
    }

    /// Runs a point-to-point message's exchange after all outstanding asynchronous operations, and records it.
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

    fn numbered_call<T: Element>(&self, count: usize, peer: Rank, sends: bool) -> Arc<Call> {
        let mut peer_sequences = self.peer_sequences.borrow_mut();
        let numbers = if sends { &mut peer_sequences.sent } else { &mut peer_sequences.received };
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
    let mut payload = transport.alloc(size_of_val(data));
    payload.copy_from_slice(bytemuck::cast_slice(data));
    transport.post_send(peer, POINT_TO_POINT, Frame { call: call.clone(), round: 0, payload });
    transport.wait(0)?;
    transport.done();
    Ok(())
}

/// Receives into `data` what `peer` sends to `rank`, which is this rank.
fn take<T: Element>(
    transport: &mut dyn Transport,
    call: &Arc<Call>,
    rank: Rank,
    peer: Rank,
    data: &mut [T],
) -> Result<()> {
    transport.enter(call)?;
    let bytes = size_of_val(data);
    transport.post_recv(peer, POINT_TO_POINT, bytes, Combine::Copy);
    if let Event::Received { frame, .. } = transport.wait(0)? {
        agrees(transport, call, bytes, rank, peer, &frame)?;
        if frame.payload.len() != bytes {
            let why =
                format!("rank {peer} sent a message without contents: receive it by `recv_length_async`");
            return Err(transport.fail(Error::Argument(why)));
        }
        data.copy_from_slice(bytemuck::cast_slice(&frame.payload));
    }
    transport.done();
    Ok(())
}

/// Fails the group if the received message differs from the message that this rank has called for.
pub(super) fn agrees(
    transport: &mut dyn Transport,
    call: &Arc<Call>,
    bytes: usize,
    rank: Rank,
    peer: Rank,
    frame: &Frame,
) -> Result<()> {
    if *frame.call == **call && frame.payload.length() == bytes {
        return Ok(());
    }
    let (mine, theirs) = (call.as_ref().clone().into(), frame.call.as_ref().clone().into());
    Err(transport.fail(Error::Mismatch { rank, mine, peer, theirs }))
}
