//! Operations without contents, on virtual time: they take as long as operations with contents. For runs of which only the times are
//! wanted, so that ranks need no memory for their data. The returned buffers are empty.
//!
//! Every operation returns [`Error::Argument`](crate::Error::Argument) in real time, and otherwise the errors of the operation with
//! contents.

use super::Communicator;
use super::operation::{Prepared, needs_virtual_time};
use super::planned::request;
use super::point_to_point::agrees;
use crate::schedule::Combine;
use crate::transport::{Event, Frame, POINT_TO_POINT, Payload};
use crate::work::Work;
use crate::{Buffer, Collective, DType, Rank, Result};

impl Communicator {
    /// A collective over `count` elements (of the whole buffer, or of one block where the collective is made of blocks), with root 0
    /// where it has a root. Every rank calls it.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) in real time; the errors of the collective.
    pub fn collective_length(&self, collective: Collective, count: usize, dtype: DType) -> Result<()> {
        let run = |prepared: &Prepared, number, connection: &mut _, begin: &dyn Fn()| {
            begin();
            prepared.run_lengths(number, connection)
        };
        self.run_by(request(collective, count, dtype), run).map(drop)
    }

    /// [`Communicator::collective_length`] on the communication thread.
    ///
    /// # Errors
    /// As the blocking form, and the errors of [`Communicator::all_reduce_async`].
    pub fn collective_length_async(
        &self,
        collective: Collective,
        count: usize,
        dtype: DType,
    ) -> Result<Work<Buffer<u8>>> {
        let prepared = self.prepare(request(collective, count, dtype))?;
        let sequence = self.membership.number();
        let ticket = self.membership.record_issue(prepared.call(sequence), None);
        self.run_later(ticket, move |connection| {
            prepared.run_lengths(sequence, connection)?;
            Ok(Buffer::zeroed(0))
        })
    }

    /// A message of `bytes` bytes to a rank that calls [`Communicator::recv_length_async`].
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) in real time; the errors of [`Communicator::send_async`].
    pub fn send_length_async(&self, bytes: usize, to: Rank) -> Result<Work<Buffer<u8>>> {
        let (peer, call) = self.message::<u8>(bytes, to, true)?;
        let ticket = self.membership.record_issue(call.as_ref().clone(), Some(peer));
        self.run_later(ticket, move |connection| {
            let transport = connection.messages();
            needs_virtual_time(transport)?;
            transport.enter(&call)?;
            let frame = Frame { call: call.clone(), round: 0, payload: Payload::of_length(bytes) };
            transport.post_send(peer, POINT_TO_POINT, frame);
            transport.wait(0)?;
            transport.done();
            Ok(Buffer::zeroed(0))
        })
    }

    /// Receives a message without contents from a rank that calls [`Communicator::send_length_async`] with as many bytes.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) where the peer sends another length; the errors of [`Communicator::send_length_async`].
    pub fn recv_length_async(&self, bytes: usize, from: Rank) -> Result<Work<Buffer<u8>>> {
        let (peer, call) = self.message::<u8>(bytes, from, false)?;
        let (ticket, rank) = (self.membership.record_issue(call.as_ref().clone(), Some(peer)), self.rank());
        self.run_later(ticket, move |connection| {
            let transport = connection.messages();
            needs_virtual_time(transport)?;
            transport.enter(&call)?;
            transport.post_recv(peer, POINT_TO_POINT, bytes, Combine::Copy);
            if let Event::Received { frame, .. } = transport.wait(0)? {
                agrees(transport, &call, bytes, rank, peer, &frame)?;
            }
            transport.done();
            Ok(Buffer::zeroed(0))
        })
    }
}
