//! Draws from a seed.

use allfold_base::hash::SplitMix;

/// A sequence of draws.
pub(crate) struct Dice(SplitMix);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(SplitMix(seed))
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.word() % end.max(1)
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
