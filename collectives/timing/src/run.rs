//! The result of an engine, before it is compared with its bounds.

use allfold_sim::Picos;

/// The result of an engine, before it is compared with its bounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// When each representative is done.
    pub finish: Vec<Picos>,
    /// The time of this run if messages had no bytes: a second clock, computed over the same dependencies. The run's time is never
    /// less.
    pub chain: Picos,
    /// The number of messages that representatives sent to other ranks.
    pub messages: u64,
    /// The number of bytes in those messages.
    pub bytes: u64,
    /// The bytes over each link, or over one link of each class.
    pub links: Vec<u64>,
    /// The hash of every message with its time.
    pub hash: u64,
    /// The number of messages that were skipped and not timed one by one.
    pub skipped: u64,
}

impl Run {
    /// This run with each message representing `lanes` equal messages.
    pub fn times(self, lanes: u32) -> Run {
        let times = u64::from(lanes);
        Run {
            messages: self.messages * times,
            bytes: self.bytes.saturating_mul(times),
            hash: self.hash.wrapping_mul(times),
            skipped: self.skipped * times,
            ..self
        }
    }
}
