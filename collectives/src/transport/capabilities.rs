//! Optional capabilities of transports: each is a small trait, returned by an accessor of [`super::Transport`].

use crate::schedule::Combine;
use crate::{Call, Result};
use allfold_kernels::fused::CallBuffers;
use std::time::Duration;

/// The header of a call: the call without its number, the number, and a label of both. Cheap to construct.
#[derive(Clone, Copy)]
pub(crate) struct CallHeader<'a> {
    pub call: &'a Call,
    pub sequence: u64,
    /// A label: equal for equal calls and numbers.
    pub label: u64,
    /// Records the start of the call. A transport calls this no later than just after it has announced the call; a second call does
    /// nothing.
    pub begin: &'a dyn Fn(),
}

impl CallHeader<'_> {
    /// The call with its number.
    pub fn write(&self) -> Call {
        Call { sequence: self.sequence, ..self.call.clone() }
    }
}

/// Collectives that the backend itself provides, such as MPI's.
pub(crate) trait Native {
    /// Whether the backend provides this call and uses it.
    fn provides(&self, call: &Call) -> bool;

    /// Runs the collective of the call.
    fn run_native(&mut self, header: CallHeader<'_>, buffers: CallBuffers<'_>) -> Result<()>;
}

/// Virtual time: it advances only as the transport accounts for it.
pub(crate) trait VirtualTime {
    /// Accounts for a local copy of this many bytes, which the executor has done already. Returns true if it took no time;
    /// otherwise [`super::Event::Moved`] follows.
    fn moved(&mut self, round: u64, bytes: usize, how: Combine) -> bool;
}

/// The state of the group, for collectives without messages.
pub(crate) trait Monitor {
    /// The group's failure, if any. Cheap, because it runs before every operation.
    fn failure(&mut self) -> Result<()>;

    /// Announces to the peers the operation that this rank has entered. Returns the group's failure, if any.
    fn declare(&mut self) -> Result<()>;

    /// How long an operation may take.
    fn deadline(&self) -> Duration;

    /// Ends the operation: all ranks have completed it, although not all may have entered it at the transport.
    fn complete(&mut self);
}
