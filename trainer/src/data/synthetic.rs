//! Random samples of any shape: for timing, and for seeing whether a network can learn by heart.

use super::{Dataset, Samples};
use crate::{Config, Error, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The shape of a sample: a picture's, or for the gpt its number of tokens.
pub fn shape(config: &Config) -> (usize, usize, usize) {
    let [channels, height, width] = config.synthetic_shape;
    if config.model == "gpt" { (1, 1, config.positions) } else { (channels, height, width) }
}

/// Pictures uniform in -1..1 with labels drawn alike; for the gpt, tokens, each followed by the next one drawn. A tenth is
/// for testing.
pub fn load(config: &Config) -> Result<(Dataset, Dataset)> {
    let mut random = ChaCha8Rng::seed_from_u64(config.seed);
    random.set_stream(u64::MAX);
    let (shape, classes) = (shape(config), config.synthetic_classes);
    let below = |random: &mut ChaCha8Rng| ((random.next_u32() as u64 * classes as u64) >> 32) as u32;
    let mut set = |samples: usize| {
        let sizes = [samples, shape.0, shape.1, shape.2];
        let count = sizes.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
        let labels =
            if config.model == "gpt" { count.and_then(|count| count.checked_add(1)) } else { Some(samples) };
        let room = count.zip(labels).and_then(|(count, labels)| Some((count, room(count)?, room(labels)?)));
        let Some((count, mut numbers, mut labels)) = room else {
            return Err(Error::Data(format!(
                "`synthetic_samples` {samples} of {} x {} x {} numbers do not fit in memory; take fewer, or smaller ones",
                shape.0, shape.1, shape.2
            )));
        };
        if config.model == "gpt" {
            labels.extend((0..=count).map(|_| below(&mut random)));
            numbers.extend(labels[..count].iter().map(|&token: &u32| token as f32));
            labels.remove(0);
        } else {
            let pixel = |random: &mut ChaCha8Rng| (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
            numbers.extend((0..count).map(|_| pixel(&mut random)));
            labels.extend((0..samples).map(|_| below(&mut random)));
        }
        Ok(Dataset { shape, classes, samples: Samples::Numbers(numbers), labels })
    };
    match config.synthetic_samples {
        0 => Err(Error::Data("`synthetic_samples` is 0; it must be 1 or more".into())),
        samples => Ok((set(samples)?, set(samples.div_ceil(10))?)),
    }
}

/// An empty vector with capacity for `count` elements, if memory allows.
fn room<T>(count: usize) -> Option<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).ok()?;
    Some(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_in_memory_is_refused() {
        for synthetic_shape in [[1 << 16, 1 << 16, 1 << 16], [1 << 16, 1 << 16, 1 << 15]] {
            for synthetic_samples in [1 << 12, 1 << 20] {
                let config = Config { synthetic_shape, synthetic_samples, ..Config::default() };
                let error = load(&config).unwrap_err().to_string();
                assert!(error.contains("x 65536 x") && error.contains("do not fit in memory"), "{error}");
            }
        }
    }

    #[test]
    fn a_set_is_of_the_form_that_is_told() {
        for (data, model) in [("digits", "cnn"), ("synthetic", "cnn"), ("synthetic", "gpt")] {
            let config = Config {
                data: data.into(),
                model: model.into(),
                synthetic_samples: 20,
                synthetic_shape: [3, 5, 4],
                synthetic_classes: 7,
                positions: 6,
                ..Config::default()
            };
            let (train, test) = crate::data::load(&config).unwrap();
            for set in [train, test] {
                assert_eq!((set.shape, set.classes), crate::data::form(&config).unwrap(), "{data}, {model}");
                assert!(set.labels.len() == set.len() * set.rows());
            }
        }
    }
}
