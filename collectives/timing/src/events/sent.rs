//! What is told of every message.

use allfold_schedules::schedule::Rank;
use allfold_sim::{Bytes, Picos};

/// A message, as a trace shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The sender; `to` is the receiver.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The round of the schedule it belongs to.
    pub round: u64,
    /// The message's lane.
    pub lane: u32,
    /// The message's size.
    pub bytes: Bytes,
    /// Both sides had posted it and its channel was free.
    pub start: Picos,
    /// When the message's last byte was on its way: the sender's half was done.
    pub left: Picos,
    /// When it had arrived and was combined: the receiver's half is done.
    pub arrived: Picos,
}

/// A function that is called for every message when it has arrived.
pub type Sink<'a> = &'a mut dyn FnMut(&Sent);
