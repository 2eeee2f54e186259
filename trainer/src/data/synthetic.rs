//! Random samples of any shape: for timing, and for seeing whether a network can learn by heart.

use super::{Dataset, Samples};
use crate::{Config, Error, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Pictures uniform in -1..1 with labels drawn alike; for the gpt, tokens, each followed by the next one drawn. A tenth is
/// for testing.
pub fn load(config: &Config) -> Result<(Dataset, Dataset)> {
    let mut random = ChaCha8Rng::seed_from_u64(config.seed);
    random.set_stream(u64::MAX);
    let classes = config.synthetic_classes;
    let below = |random: &mut ChaCha8Rng| ((random.next_u32() as u64 * classes as u64) >> 32) as u32;
    let mut set = |samples: usize| {
        if config.model == "gpt" {
            let positions = config.positions;
            let tokens: Vec<u32> = (0..samples * positions + 1).map(|_| below(&mut random)).collect();
            let numbers = tokens[..samples * positions].iter().map(|&token| token as f32).collect();
            let (samples, labels) = (Samples::Numbers(numbers), tokens[1..].to_vec());
            return Dataset { shape: (1, 1, positions), classes, samples, labels };
        }
        let shape = (config.synthetic_shape[0], config.synthetic_shape[1], config.synthetic_shape[2]);
        let pixel = |random: &mut ChaCha8Rng| (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let numbers = (0..samples * shape.0 * shape.1 * shape.2).map(|_| pixel(&mut random)).collect();
        let labels = (0..samples).map(|_| below(&mut random)).collect();
        Dataset { shape, classes, samples: Samples::Numbers(numbers), labels }
    };
    match config.synthetic_samples {
        0 => Err(Error::Data("`synthetic_samples` is 0; it must be 1 or more".into())),
        samples => Ok((set(samples), set(samples.div_ceil(10)))),
    }
}
