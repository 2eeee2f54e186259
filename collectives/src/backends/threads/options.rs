//! What can be chosen about ranks as threads.

use std::time::Duration;

/// What can be chosen about ranks as threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How long an operation may take.
    pub deadline: Duration,
    /// Messages that a channel holds before their sender waits for the receiver; 0: a message has left only
    /// when the receiver has taken it.
    pub capacity: usize,
    /// Whether collectives are done through shared memory, without messages.
    pub fused: bool,
}
