//! The names of messages, of their halves and of their channels.

use crate::Rank;
use crate::backends::{GroupId, TaskId};

/// A message between its start and its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageId(pub u32);

/// A half of a message: the task that posted it and its operation. A message that arrives for an earlier operation is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Half {
    pub task: TaskId,
    pub operation: u64,
}

/// A channel: the group, the sender and the receiver in it, the lane.
pub(super) type Channel = (GroupId, Rank, Rank, u32);
