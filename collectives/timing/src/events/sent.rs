//! What is told of every message.

use allfold_schedules::schedule::Rank;
use allfold_sim::{Bytes, Picos};

/// A message, as a trace shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Who sent it, and to whom.
    pub from: Rank,
    /// To whom.
    pub to: Rank,
    /// The round of the schedule it belongs to.
    pub round: u64,
    /// Its lane.
    pub lane: u32,
    /// Its size.
    pub bytes: Bytes,
    /// Both sides had posted it and its channel was free.
    pub start: Picos,
    /// Its last byte was on its way: the sender's half was done.
    pub left: Picos,
    /// It had arrived and, where it reduces, was combined: the receiver's half was done.
    pub arrived: Picos,
}

/// Who is told of every message, when it has arrived.
pub type Sink<'a> = &'a mut dyn FnMut(&Sent);
