//! Points of two spirals in the plane; the label is the number of the spiral.

use allfold_trainer::data::Samples;
use allfold_trainer::{Config, Dataset, Result};
use std::f64::consts::PI;

const TRAIN: usize = 512;
const TEST: usize = 128;

/// Numbers between 0 and 1 that follow from a seed (SplitMix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn points(count: usize, draws: &mut Draws) -> Dataset {
    let (mut numbers, mut labels) = (Vec::new(), Vec::new());
    for point in 0..count {
        let label = (point % 2) as u32;
        // Along the spiral, without its middle, which both spirals share.
        let along = 0.15 + 0.85 * draws.next();
        let angle = 3.0 * PI * along + PI * f64::from(label);
        let mut noise = || 0.04 * (draws.next() - 0.5);
        numbers.extend([along * angle.cos() + noise(), along * angle.sin() + noise()].map(|x| x as f32));
        labels.push(label);
    }
    Dataset { shape: (1, 1, 2), classes: 2, samples: Samples::Numbers(numbers), labels }
}

/// The training set and the test set that the configuration's seed draws.
pub fn load(config: &Config) -> Result<(Dataset, Dataset)> {
    let mut draws = Draws(config.seed);
    Ok((points(TRAIN, &mut draws), points(TEST, &mut draws)))
}
