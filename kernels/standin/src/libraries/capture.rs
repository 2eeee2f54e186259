//! A capture in progress: its streams record tasks instead of running them.

use super::task::Task;
use std::collections::BTreeMap;

/// A vector clock: for each stream, the number of its nodes that come before a point.
pub(super) type Clock = BTreeMap<u64, usize>;

/// A capture in progress, with the streams that take part and the tasks recorded so far.
pub(super) struct Capture {
    /// The stream that began the capture and must end it.
    pub origin: u64,
    /// The streams of the capture, each with its vector clock.
    pub members: BTreeMap<u64, Clock>,
    /// The number of nodes of each stream so far.
    pub counts: Clock,
    /// The nodes in the order of their calls, which is an order in which they may run.
    pub tasks: Vec<Task>,
    /// Whether an operation has made the capture invalid.
    pub invalid: bool,
}

impl Capture {
    pub fn new(origin: u64) -> Capture {
        let members = [(origin, Clock::new())].into();
        Capture { origin, members, counts: Clock::new(), tasks: Vec::new(), invalid: false }
    }

    /// Whether the end of the origin stream is ordered after all nodes of the other streams.
    pub fn is_joined(&self) -> bool {
        let Some(known) = self.members.get(&self.origin) else { return false };
        self.counts.iter().all(|(stream, count)| *stream == self.origin || known.get(stream) == Some(count))
    }
}
