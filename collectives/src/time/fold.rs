//! A hash of every message of a run with its time.
//!
//! Messages are added, not chained, so engines that find the same messages in another order have the same hash.

/// The hash of the messages so far: equal for equal sets, different for almost all others.
#[derive(Clone, Copy, Default)]
pub(crate) struct EventHash(u64);

impl EventHash {
    pub(crate) fn new() -> EventHash {
        EventHash::default()
    }

    /// A message to `actor` that is done at `time`. The mix is the finalizer of SplitMix64 (G. Steele, D. Lea,
    /// C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
    #[inline]
    pub(crate) fn message(&mut self, actor: u32, time: u64) {
        let z = time.wrapping_add((u64::from(actor) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = self.0.wrapping_add(z ^ (z >> 31));
    }

    /// Messages that were not timed one by one because they repeat earlier ones: `times` periods of `span` each.
    pub(crate) fn repeated(&mut self, times: u64, span: u64) {
        self.message(u32::MAX, times.rotate_left(32) ^ span);
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(messages: &[(u32, u64)]) -> u64 {
        let mut hash = EventHash::new();
        messages.iter().for_each(|&(actor, time)| hash.message(actor, time));
        hash.value()
    }

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
        let run = hash(&[(0, 5), (1, 5), (0, 9)]);
        assert_eq!(run, hash(&[(0, 9), (0, 5), (1, 5)]));
        assert_ne!(run, hash(&[(0, 5), (1, 9), (0, 5)]));
        assert_ne!(run, hash(&[(0, 5), (1, 5), (0, 10)]));
        assert_ne!(run, hash(&[(0, 5), (1, 5)]));
    }
}
