//! Random samples of any shape: for timing, and to see whether a network can memorise samples.

use super::{Dataset, Samples};
use crate::{Error, Result};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The size and kind of a synthetic set.
#[derive(Clone, Copy, Debug)]
pub struct SyntheticOptions {
    /// The number of training samples.
    pub samples: usize,
    /// Channels, height and width of a sample; for tokens, 1, 1 and their number.
    pub shape: (usize, usize, usize),
    /// The number of classes; for tokens, the vocabulary.
    pub classes: usize,
    /// Whether samples are rows of tokens, whose labels are the next tokens.
    pub tokens: bool,
    /// The seed that everything is drawn from.
    pub seed: u64,
}

/// Pictures with values uniform in -1..1 and uniform labels; or uniform tokens whose label is the next token. The test set has a
/// tenth as many samples.
///
/// # Errors
/// If there are no samples, or more than fit in memory.
pub fn load(options: &SyntheticOptions) -> Result<(Dataset, Dataset)> {
    let SyntheticOptions { samples, shape, classes, tokens, seed } = *options;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(u64::MAX);
    let below = |random: &mut ChaCha8Rng| ((random.next_u32() as u64 * classes as u64) >> 32) as u32;
    let mut set = |samples: usize| {
        let sizes = [samples, shape.0, shape.1, shape.2];
        let count = sizes.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
        let labels = if tokens { count.and_then(|count| count.checked_add(1)) } else { Some(samples) };
        let vectors =
            count.zip(labels).and_then(|(count, labels)| Some((count, reserved(count)?, reserved(labels)?)));
        let Some((count, mut numbers, mut labels)) = vectors else {
            return Err(Error::Data(format!(
                "`data.synthetic_samples` {samples} of {} x {} x {} numbers do not fit in memory; take fewer, or smaller ones",
                shape.0, shape.1, shape.2
            )));
        };
        if tokens {
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
    match samples {
        0 => Err(Error::Data("`data.synthetic_samples` is 0; it must be 1 or more".into())),
        samples => Ok((set(samples)?, set(samples.div_ceil(10))?)),
    }
}

/// An empty vector with capacity for `count` elements, if memory allows.
fn reserved<T>(count: usize) -> Option<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(count).ok()?;
    Some(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_in_memory_is_refused() {
        for shape in [(1 << 16, 1 << 16, 1 << 16), (1 << 16, 1 << 16, 1 << 15)] {
            for samples in [1 << 12, 1 << 20] {
                let options = SyntheticOptions { samples, shape, classes: 10, tokens: false, seed: 0 };
                let error = load(&options).unwrap_err().to_string();
                assert!(error.contains("x 65536 x") && error.contains("do not fit in memory"), "{error}");
            }
        }
    }
}
