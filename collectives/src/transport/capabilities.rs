//! Optional capabilities of transports: each is a small trait, returned by an accessor of [`super::Transport`].

use crate::schedule::Combine;
use crate::{Call, Result};
use allfold_kernels::fused::Ends;
use std::time::Duration;

/// The header of a call: the call without its number, the number, and a label of both. Cheap to make.
#[derive(Clone, Copy)]
pub(crate) struct CallHeader<'a> {
    pub call: &'a Call,
    pub sequence: u64,
    /// A label: equal for equal calls and numbers.
    pub label: u64,
    /// Records the start of the call. A transport calls it at the latest when it has announced the call; a second call does nothing.
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
    fn offers(&self, call: &Call) -> bool;

    /// Runs it.
    fn run_native(&mut self, header: CallHeader<'_>, ends: Ends<'_>) -> Result<()>;
}

/// Virtual time: it passes only as the transport accounts for it.
pub(crate) trait VirtualTime {
    /// Accounts for a local copy of this many bytes, which the executor has done already. Returns true if it took no time;
    /// otherwise [`super::Event::Moved`] follows.
    fn moved(&mut self, round: u64, bytes: usize, how: Combine) -> bool;
}

/// The state of the group, for collectives without messages.
pub(crate) trait Monitor {
    /// The group's failure, if any. Cheap, because it is called before every operation.
    fn failure(&mut self) -> Result<()>;

    /// For the operation that was entered: returns the group's failure, and tells the peers which operation it is.
    fn declare(&mut self) -> Result<()>;

    /// How long an operation may take.
    fn deadline(&self) -> Duration;

    /// Ends the operation: all ranks have done it, although not all may have entered it here.
    fn complete(&mut self);
}
