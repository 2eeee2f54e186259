//! What an engine hands back, before it is held against its bounds.

use allfold_sim::Picos;

/// What an engine hands back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// When each representative is done.
    pub finish: Vec<Picos>,
    /// The time of this run if no message had any bytes: a second clock, carried through the same dependencies. The run may
    /// never be faster.
    pub chain: Picos,
    /// Messages that representatives sent to other ranks.
    pub messages: u64,
    /// Bytes in those messages.
    pub bytes: u64,
    /// Bytes over each link, or over one link of each class.
    pub links: Vec<u64>,
    /// The hash of every message with its time.
    pub hash: u64,
    /// Messages that were jumped over.
    pub skipped: u64,
}

impl Run {
    /// This run with each message standing for `lanes` equal ones.
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
