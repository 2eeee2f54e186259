//! Which samples are held out as a test set, by a draw.

use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

/// For each of `count` samples, 2 or more, whether the sample is held out: this share of the samples, one at
/// least and not all.
pub fn drawn(count: usize, share: f64, random: &mut ChaCha8Rng) -> Vec<bool> {
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(random);
    let share = (count as f64 * share).round() as usize;
    let mut held = vec![false; count];
    order[..share.max(1).min(count - 1)].iter().for_each(|&at| held[at] = true);
    held
}
