//! What the executor needs of a backend: frames posted to and from peers, and the news of what became of them.
//!
//! A *channel* is (source, destination, lane). Frames are posted on a channel in program order on both sides and
//! arrive in that order, so news needs to name no more than the channel.

mod payload;

pub(crate) use payload::{Payload, Pool};

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
    /// A local move is done.
    Moved { round: u64 },
}

/// A rank's way to its peers for one operation: real threads with real time, or virtual time.
pub(crate) trait Transport {
    /// Enters the operation: the group's ledger hears of the call, and its deadline starts to run.
    fn enter(&mut self, call: &Arc<Call>) -> Result<()>;

    /// Room for `bytes` bytes, of any content.
    fn room(&self, bytes: usize) -> Payload;

    /// Posts a frame to a peer. [`Event::Sent`] follows, in order of the channel.
    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame);

    /// Posts a receive of that many bytes. `reduced` says whether they will be combined with what is there.
    /// [`Event::Received`] follows, in order of the channel.
    fn post_recv(&mut self, from: Rank, lane: u32, bytes: usize, reduced: bool);

    /// Accounts for a move of that many bytes within the rank, which the executor has done already. True: it took
    /// no time. Else [`Event::Moved`] follows.
    fn moved(&mut self, round: u64, bytes: usize, reduced: bool) -> bool;

    /// Waits for the next news. `round` is that of the oldest unfinished step, for errors to name.
    fn wait(&mut self, round: u64) -> Result<Event>;

    /// The operation is done; what it took may be recorded.
    fn done(&mut self) {}

    /// Reports an error that this rank found; the whole group fails with it, unless it has failed before.
    /// Returns the error that counts.
    fn fail(&mut self, error: Error) -> Error;
}
