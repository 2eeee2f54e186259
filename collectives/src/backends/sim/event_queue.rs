//! The event queue, ordered by time, then rank, stream and sequence.

use super::message::{Half, MessageId};
use crate::backends::{GateId, Member, TaskId};
use crate::transport::Frame;
use crate::{Call, Error, Lost, Rank};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An event to apply at an instant.
#[derive(Debug)]
pub(super) enum ScheduledEvent {
    /// The overhead of a message is over, and its bytes begin to flow.
    Flow(MessageId),
    /// A message has arrived and is combined.
    Arrive(MessageId),
    /// A local move is done.
    Moved { half: Half, round: u64 },

    /// A task enters an operation.
    Enter { member: Member, call: Arc<Call> },
    /// A task posts a send.
    Send { half: Half, member: Member, to: Rank, lane: u32, frame: Frame },
    /// A task posts a receive.
    Receive { half: Half, member: Member, from: Rank, lane: u32, reduced: bool },
    /// A gate's count increases by one.
    Raise { task: TaskId, gate: GateId },
    /// A task waits at a gate.
    Pass { task: TaskId, gate: GateId, count: u64 },
    /// A task checks a gate without waiting.
    Poll { task: TaskId, gate: GateId, count: u64 },
    /// A rank leaves a group.
    Leave { member: Member, operations: u64, cause: Lost },
    /// A rank dies, by its number in the world.
    Die { rank: Rank },
    /// A rank requests the survivors of its group.
    Shrink { member: Member },
    /// A task fails its group.
    Fail { task: TaskId, member: Member, error: Error },
}

/// The position of an event in the queue. At one instant, events that the event loop has scheduled come before requests of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    time: u64,
    request: bool,
    rank: Rank,
    stream: u32,
    sequence: u64,
}

/// All pending events.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    due: BTreeMap<Place, ScheduledEvent>,
    /// Number of events that the event loop has scheduled so far.
    events: u64,
}

impl EventQueue {
    /// An event of the event loop's own.
    pub fn event(&mut self, time: u64, due: ScheduledEvent) {
        self.events += 1;
        let place = Place { time, request: false, rank: Rank(0), stream: 0, sequence: self.events };
        self.due.insert(place, due);
    }

    /// A request of a task.
    pub fn request(&mut self, time: u64, rank: Rank, stream: u32, sequence: u64, due: ScheduledEvent) {
        self.due.insert(Place { time, request: true, rank, stream, sequence }, due);
    }

    /// The time of the first event.
    pub fn next(&self) -> Option<u64> {
        self.due.first_key_value().map(|(place, _)| place.time)
    }

    /// Takes the first event that is due by `now`.
    pub fn take(&mut self, now: u64) -> Option<ScheduledEvent> {
        let first = self.due.first_entry()?;
        (first.key().time <= now).then(|| first.remove())
    }
}
