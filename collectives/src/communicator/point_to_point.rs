//! Point-to-point messages: send and receive.

use super::Communicator;
use crate::schedule::Combine;
use crate::transport::{Event, Frame, LETTERS, Transport};
use crate::{Call, Element, Error, Operation, Rank, Result};
use std::sync::Arc;

impl Communicator {
    /// Sends `data` to another rank, which receives as many elements of the same type. Returns when the message
    /// was sent. Messages between two ranks arrive in order.
    ///
    /// # Errors
    /// [`Error::Argument`] where `to` is this rank or none of the group; those of the group.
    pub fn send<T: Element>(&self, data: &[T], to: Rank) -> Result<()> {
        let peer = self.peer(to)?;
        self.membership.check()?;
        let call = self.letter::<T>(data.len(), peer, true);
        let result = self.in_flight(&call, peer, |transport| {
            transport.enter(&call)?;
            let mut payload = transport.room(size_of_val(data));
            payload.copy_from_slice(bytemuck::cast_slice(data));
            transport.post_send(peer, LETTERS, Frame { call: call.clone(), round: 0, payload });
            transport.wait(0)?;
            transport.done();
            Ok(())
        });
        self.membership.tell(result)
    }

    /// Receives into `data` what another rank sends.
    ///
    /// # Errors
    /// [`Error::Argument`] where `from` is this rank or none of the group; [`Error::Mismatch`] where the peer sends another
    /// length or type; those of the group.
    pub fn recv<T: Element>(&self, data: &mut [T], from: Rank) -> Result<()> {
        let peer = self.peer(from)?;
        self.membership.check()?;
        let call = self.letter::<T>(data.len(), peer, false);
        let result = self.in_flight(&call.clone(), peer, |transport| {
            transport.enter(&call)?;
            let bytes = size_of_val(data);
            transport.post_recv(peer, LETTERS, bytes, Combine::Copy);
            if let Event::Received { frame, .. } = transport.wait(0)? {
                if *frame.call != *call || frame.payload.len() != bytes {
                    let (mine, theirs) = (call.as_ref().clone().into(), frame.call.as_ref().clone().into());
                    return Err(transport.fail(Error::Mismatch { rank: self.rank(), mine, peer, theirs }));
                }
                data.copy_from_slice(bytemuck::cast_slice(&frame.payload));
            }
            transport.done();
            Ok(())
        });
        self.membership.tell(result)
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
