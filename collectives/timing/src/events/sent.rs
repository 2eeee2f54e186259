//! The record of a message for traces.

use allfold_schedules::schedule::Rank;
use allfold_sim::{Bytes, Picos};

/// A message with its times, as a trace shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The rank that sends the message.
    pub from: Rank,
    /// The rank that receives the message.
    pub to: Rank,
    /// The message's round in the schedule.
    pub round: u64,
    /// The message's lane.
    pub lane: u32,
    /// The message's size.
    pub bytes: Bytes,
    /// When the message started: both sides had posted it and its channel was free.
    pub start: Picos,
    /// When the message's last byte left, which ends the sender's half.
    pub left: Picos,
    /// When the message had arrived and was combined, which ends the receiver's half.
    pub arrived: Picos,
}

/// A function that is called for every message when it has arrived.
pub type Sink<'a> = &'a mut dyn FnMut(&Sent);
