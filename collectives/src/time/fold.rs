//! A hash of everything that happened, in order, with its time.

/// Folds 64-bit words, in order; equal for equal sequences, different for almost all others.
#[derive(Clone, Copy)]
pub(crate) struct EventHash(u64);

/// 2^64 / the golden ratio, odd.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl EventHash {
    pub(crate) fn new() -> EventHash {
        EventHash(SPREAD)
    }

    pub(crate) fn fold(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(SPREAD).rotate_left(29);
    }

    /// A message to `actor` that is done at `time`.
    pub(crate) fn message(&mut self, actor: u32, time: u64) {
        self.fold(time.wrapping_add(u64::from(actor) << 40));
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}
