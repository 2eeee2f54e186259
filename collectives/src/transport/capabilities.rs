//! What some transports can do beside messages: each a small trait, found by an accessor of
//! [`super::Transport`].

use crate::schedule::Combine;
use crate::{Call, Result};
use allfold_kernels::fused::Ends;
use std::time::Duration;

/// What a rank calls, without the cost of writing it down: the call without its number, the number, and one word for both.
#[derive(Clone, Copy)]
pub(crate) struct CallHeader<'a> {
    pub call: &'a Call,
    pub sequence: u64,
    /// Equal for equal calls and numbers.
    pub label: u64,
    /// To be called once the others have been told, or before; a second call does nothing.
    pub begin: &'a dyn Fn(),
}

impl CallHeader<'_> {
    /// The call with its number.
    pub fn write(&self) -> Call {
        Call { sequence: self.sequence, ..self.call.clone() }
    }
}

/// Whole collectives of the place where the ranks run.
pub(crate) trait Native {
    /// Whether there is one for this call, and it is to be used.
    fn offers(&self, call: &Call) -> bool;

    /// Runs it.
    fn run_native(&mut self, header: CallHeader<'_>, ends: Ends<'_>) -> Result<()>;
}

/// Time that passes only where a transport says so.
pub(crate) trait VirtualTime {
    /// Accounts for a move of that many bytes within the rank, which the executor has done already. True: the move took
    /// no time. Else [`super::Event::Moved`] follows.
    fn moved(&mut self, round: u64, bytes: usize, how: Combine) -> bool;
}

/// The group's state, for a collective that the ranks do without messages.
pub(crate) trait Monitor {
    /// The group's failure, if there is one. Cheap: asked before every operation.
    fn failure(&mut self) -> Result<()>;

    /// Of the operation entered: the group's failure, and word to the peers of which operation it is.
    fn declare(&mut self) -> Result<()>;

    /// How long an operation may take.
    fn deadline(&self) -> Duration;

    /// All ranks have done the operation entered, though not all of them may have entered it here.
    fn complete(&mut self);
}
