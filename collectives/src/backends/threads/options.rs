//! The options of a world of threads.

use std::time::Duration;

/// The options of a world of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How long an operation may take.
    pub deadline: Duration,
    /// The number of messages that a channel holds before their sender waits for the receiver. With 0, a send ends only when the
    /// receiver has taken the message.
    pub capacity: usize,
    /// Whether collectives are done through shared memory, without messages.
    pub fused: bool,
}
