//! What the executor needs of a backend: frames posted to and from peers, and the news of what became of them.
//!
//! A *channel* is (source, destination, lane). Frames are posted on a channel in program order on both sides and
//! arrive in that order, so news needs to name no more than the channel.

mod payload;

pub(crate) use payload::{Payload, Pool};

use crate::schedule::{Combine, Span};
use crate::{Call, Error, Rank, Result};
use allfold_kernels::fused::{Ends, Exchange};
use std::ops::Range;
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

/// What a rank calls, without the cost of writing it down: but for its number, and as one word.
#[derive(Clone, Copy)]
pub(crate) struct Summons<'a> {
    pub call: &'a Call,
    pub sequence: u64,
    /// Equal for equal calls and numbers.
    pub label: u64,
    /// To be called once the others have been told, or before; again does nothing.
    pub begin: &'a dyn Fn(),
}

impl Summons<'_> {
    /// The call with its number.
    pub fn write(&self) -> Call {
        Call { sequence: self.sequence, ..self.call.clone() }
    }
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
    /// A local move is done.
    Moved { round: u64 },
}

/// A rank's bytes during an operation, for transports that move them without a copy in between. A span may lie in several
/// pieces; its bytes are counted from its start.
pub(crate) trait Memory {
    /// These bytes of a span, where they lie in one piece. They are sent now: the parts of a span are asked for in order.
    fn source(&mut self, span: Span, part: Range<usize>) -> Option<&[u8]>;
    /// Copies a span's bytes from this one on; false if they are not all there.
    fn copy_out(&mut self, span: Span, from: usize, into: &mut [u8]) -> bool;
    /// These bytes of a span of the buffer, to be overwritten, where they lie in one piece.
    fn target(&mut self, span: Span, part: Range<usize>) -> Option<&mut [u8]>;
    /// Copies or reduces whole elements into a span of the buffer, from this byte of it on; the parts of a span come in
    /// order.
    fn put(&mut self, span: Span, from: usize, how: Combine, bytes: &[u8]);
}

/// No bytes at all: for messages that are payloads.
pub(crate) struct NoMemory;

impl Memory for NoMemory {
    fn source(&mut self, _span: Span, _part: Range<usize>) -> Option<&[u8]> {
        None
    }

    fn copy_out(&mut self, _span: Span, _from: usize, _into: &mut [u8]) -> bool {
        false
    }

    fn target(&mut self, _span: Span, _part: Range<usize>) -> Option<&mut [u8]> {
        None
    }

    fn put(&mut self, _span: Span, _from: usize, _how: Combine, _bytes: &[u8]) {}
}

/// A transport that moves bytes from and to the place where they lie, while it has been lent that memory.
pub(crate) trait Direct {
    /// Posts a send of a span. It is not written to until [`Event::Sent`].
    fn send_from(&mut self, to: Rank, lane: u32, round: u64, span: Span, bytes: usize);

    /// Posts a receive into a span of the buffer: copied or reduced. [`Event::Landed`] follows.
    fn recv_into(&mut self, from: Rank, lane: u32, round: u64, span: Span, how: Combine, bytes: usize);

    /// [`Transport::wait`], with the memory that is being sent and received.
    fn progress(&mut self, round: u64, memory: &mut dyn Memory) -> Result<Event>;
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

    /// This transport without copies, where it can do that: then it is waited for by [`Direct::progress`].
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }

    /// The group's failure, if there is one. Cheap: asked before every operation that needs no message.
    fn failure(&mut self) -> Result<()> {
        Ok(())
    }

    /// Of the operation entered: the group's failure, and word to the peers of which operation it is.
    fn declare(&mut self) -> Result<()> {
        Ok(())
    }

    /// How long an operation may take.
    fn deadline(&self) -> std::time::Duration {
        std::time::Duration::from_secs(300)
    }

    /// Of how many bytes of a chunk a piece is that best goes through a schedule by itself, close behind the one before
    /// it: so that what was just reduced is still in the cache when it is sent. `None`: chunks are not cut.
    fn piece(&self) -> Option<u64> {
        None
    }

    /// Whether the ranks share memory, so that [`Transport::together`] can be called.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Does a whole operation at once, without messages, where ranks share memory. `label` is equal for equal calls.
    fn together(&mut self, call: Summons<'_>, _exchange: &Exchange, _ends: Ends<'_>) -> Result<()> {
        let Summons { call, .. } = call;
        Err(Error::System(format!("{call}: these ranks share no memory")))
    }

    /// Whether this call is one that the place where ranks run has a collective of its own for, and is to be asked.
    fn natively(&self, _call: &Call) -> bool {
        false
    }

    /// Does a whole operation by that collective: [`Transport::natively`].
    fn native(&mut self, call: Summons<'_>, _ends: Ends<'_>) -> Result<()> {
        Err(Error::System(format!("{}: there is no collective of that kind here", call.call)))
    }

    /// Reports an error that this rank found; the whole group fails with it, unless it has failed before.
    /// Returns the error that counts.
    fn fail(&mut self, error: Error) -> Error;
}
