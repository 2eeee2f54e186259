//! A capture under way: what its streams note instead of doing.

use super::task::Task;
use std::collections::BTreeMap;

/// How many nodes of each stream come before a point.
pub(super) type Clock = BTreeMap<u64, usize>;

/// A capture under way.
pub(super) struct Capture {
    /// The stream that began it and must end it.
    pub origin: u64,
    /// The streams of the capture, each with its clock.
    pub members: BTreeMap<u64, Clock>,
    /// Nodes of each stream so far.
    pub counts: Clock,
    /// Nodes, in the order in which they were given, which is one in which they may run.
    pub tasks: Vec<Task>,
    /// Something was done that it cannot hold.
    pub invalid: bool,
}

impl Capture {
    pub fn new(origin: u64) -> Capture {
        let members = [(origin, Clock::new())].into();
        Capture { origin, members, counts: Clock::new(), tasks: Vec::new(), invalid: false }
    }

    /// Streams that have nodes of which the origin's last does not know.
    pub fn is_joined(&self) -> bool {
        let Some(known) = self.members.get(&self.origin) else { return false };
        self.counts.iter().all(|(stream, count)| *stream == self.origin || known.get(stream) == Some(count))
    }
}
