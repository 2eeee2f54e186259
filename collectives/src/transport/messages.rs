//! Frames that are sent to and received from peers, and the events that complete them.
//!
//! A *channel* is (source, destination, lane). Frames are posted on a channel in program order on both sides and
//! arrive in that order, so an event names only the channel.

use super::capabilities::{Monitor, Native, VirtualTime};
use super::memory::Memory;
use super::payload::Payload;
use crate::schedule::{Combine, Span};
use crate::{Call, Error, Rank, Result};
use std::sync::Arc;

/// The lane of point-to-point messages, which no schedule uses.
pub(crate) const POINT_TO_POINT: u32 = u32::MAX;

/// One message: the sender's call, the round, and the bytes. The receiver compares call, round and length with its own schedule, so
/// a frame does not decide where bytes are written.
#[derive(Debug)]
pub(crate) struct Frame {
    pub call: Arc<Call>,
    pub round: u64,
    pub payload: Payload,
}

/// The completion of something that was posted.
#[derive(Debug)]
pub(crate) enum Event {
    /// The oldest pending send to this rank on this lane is done.
    Sent { to: Rank, lane: u32 },
    /// The oldest pending receive from this rank on this lane has arrived.
    Received { from: Rank, lane: u32, frame: Frame },
    /// The oldest pending receive from this rank on this lane was written in place: [`Direct::recv_into`].
    Landed { from: Rank, lane: u32 },
    /// A local copy is done: [`VirtualTime::moved`].
    Moved { round: u64 },
}

/// A rank's messages to and from its peers during one operation, in real or virtual time. Each optional capability of the
/// transport has an accessor.
pub(crate) trait Transport: Send {
    /// Enters the operation: records the call in the group's call table and starts its deadline.
    fn enter(&mut self, call: &Arc<Call>) -> Result<()>;

    /// A payload of `bytes` bytes with undefined content.
    fn alloc(&self, bytes: usize) -> Payload;

    /// Posts a frame to a peer. [`Event::Sent`] follows, in order of the channel.
    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame);

    /// Posts a receive of this many bytes, which will be combined in this way with the local data.
    /// [`Event::Received`] follows, in order of the channel.
    fn post_recv(&mut self, from: Rank, lane: u32, bytes: usize, how: Combine);

    /// Waits for the next event. `round`, which errors contain, is the round of the oldest unfinished step.
    fn wait(&mut self, round: u64) -> Result<Event>;

    /// Ends the operation; the transport may record how long it took.
    fn done(&mut self);

    /// Reports an error that this rank found; the whole group fails with it, unless it has failed before.
    /// Returns the group's first error.
    fn fail(&mut self, error: Error) -> Error;

    /// The capability to send and receive without copies.
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }

    /// The capability to run collectives that the backend itself provides.
    fn native(&mut self) -> Option<&mut dyn Native> {
        None
    }

    /// The capability of virtual time, in which local copies take time.
    fn virtual_time(&mut self) -> Option<&mut dyn VirtualTime> {
        None
    }

    /// The group's state, for collectives without messages. A transport without it cannot be combined with shared memory.
    fn monitor(&mut self) -> Option<&mut dyn Monitor> {
        None
    }
}

/// A transport that sends and receives in place, in memory that it borrows.
pub(crate) trait Direct: Transport {
    /// The best size in bytes of the pieces that chunks are cut into: small enough that data that were just reduced are still in
    /// the cache when they are sent.
    fn piece(&self) -> u64;

    /// Posts a send of a span. The span must not change until [`Event::Sent`].
    fn send_from(&mut self, to: Rank, lane: u32, round: u64, span: Span, bytes: usize);

    /// Posts a receive into a span of the buffer: copied or reduced. [`Event::Landed`] follows.
    fn recv_into(&mut self, from: Rank, lane: u32, round: u64, span: Span, how: Combine, bytes: usize);

    /// [`Transport::wait`], with the memory that is being sent and received.
    fn progress(&mut self, round: u64, memory: &mut dyn Memory) -> Result<Event>;
}
