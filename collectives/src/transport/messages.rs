//! Frames posted to and from peers, and the news of what became of them.
//!
//! A *channel* is (source, destination, lane). Frames are posted on a channel in program order on both sides and
//! arrive in that order, so news needs to name no more than the channel.

use super::capabilities::{Monitor, Native, VirtualTime};
use super::memory::Memory;
use super::payload::Payload;
use crate::schedule::{Combine, Span};
use crate::{Call, Error, Rank, Result};
use std::sync::Arc;

/// The lane of messages that belong to no collective; never one of a schedule's.
pub(crate) const LETTERS: u32 = u32::MAX;

/// One message: what its sender called, the round, and the bytes. The receiver knows from its own schedule what
/// all three must be, and compares; nothing is allocated or placed by what a frame says.
#[derive(Debug)]
pub(crate) struct Frame {
    pub call: Arc<Call>,
    pub round: u64,
    pub payload: Payload,
}

/// What became of something posted.
#[derive(Debug)]
pub(crate) enum Event {
    /// The oldest send under way to this rank on this lane has left.
    Sent { to: Rank, lane: u32 },
    /// The oldest receive under way from this rank on this lane is here.
    Received { from: Rank, lane: u32, frame: Frame },
    /// The oldest receive under way from this rank on this lane lies where it belongs: [`Direct::recv_into`].
    Landed { from: Rank, lane: u32 },
    /// A local move is done: [`VirtualTime::moved`].
    Moved { round: u64 },
}

/// A rank's messages to and from its peers for one operation, in real time or virtual time; and what else the transport
/// can do, by one accessor each.
pub(crate) trait Transport {
    /// Enters the operation: the group's ledger hears of the call, and its deadline starts to run.
    fn enter(&mut self, call: &Arc<Call>) -> Result<()>;

    /// Room for `bytes` bytes, of any content.
    fn room(&self, bytes: usize) -> Payload;

    /// Posts a frame to a peer. [`Event::Sent`] follows, in order of the channel.
    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame);

    /// Posts a receive of that many bytes, which will be combined in this way with what is there.
    /// [`Event::Received`] follows, in order of the channel.
    fn post_recv(&mut self, from: Rank, lane: u32, bytes: usize, how: Combine);

    /// Waits for the next news. `round` is that of the oldest unfinished step, for errors to name.
    fn wait(&mut self, round: u64) -> Result<Event>;

    /// The operation is done; what it took may be recorded.
    fn done(&mut self);

    /// Reports an error that this rank found; the whole group fails with it, unless it has failed before.
    /// Returns the error that counts.
    fn fail(&mut self, error: Error) -> Error;

    /// Messages without copies.
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }

    /// Whole collectives of the place where the ranks run.
    fn native(&mut self) -> Option<&mut dyn Native> {
        None
    }

    /// Moves within a rank that take time.
    fn virtual_time(&mut self) -> Option<&mut dyn VirtualTime> {
        None
    }

    /// The group's state, for collectives without messages. Without it ranks cannot come to share memory.
    fn monitor(&mut self) -> Option<&mut dyn Monitor> {
        None
    }
}

/// A transport that moves bytes from and to the place where they lie, while it has been lent that memory.
pub(crate) trait Direct: Transport {
    /// Of how many bytes of a chunk a piece is that best goes through a schedule by itself, close behind the one before
    /// it: so that what was just reduced is still in the cache when it is sent.
    fn piece(&self) -> u64;

    /// Posts a send of a span. It is not written to until [`Event::Sent`].
    fn send_from(&mut self, to: Rank, lane: u32, round: u64, span: Span, bytes: usize);

    /// Posts a receive into a span of the buffer: copied or reduced. [`Event::Landed`] follows.
    fn recv_into(&mut self, from: Rank, lane: u32, round: u64, span: Span, how: Combine, bytes: usize);

    /// [`Transport::wait`], with the memory that is being sent and received.
    fn progress(&mut self, round: u64, memory: &mut dyn Memory) -> Result<Event>;
}
