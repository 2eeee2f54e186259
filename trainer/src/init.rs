//! Initial weights: a function of the seed and of each parameter's number, and of nothing else.
//!
//! Every parameter has a random stream of its own, so ranks, element types and the parameters before it do not
//! matter, and f32 weights are the rounded f64 weights.

use crate::ParamSpec;
use crate::layers::Init;
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The initial values of all parameters or buffers in `places`, one after another.
///
/// # Errors
/// If the values do not fit in memory.
pub fn initial<F: Float>(places: &[ParamSpec], seed: u64) -> Result<Vec<F>> {
    let mut values = reserved(places.last().map_or(0, |last| last.range.end))?;
    for (stream, place) in places.iter().enumerate() {
        match place.init {
            Init::Constant(value) => values.extend(place.range.clone().map(|_| F::from_f64(value))),
            Init::Uniform(bound) => {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                random.set_stream(stream as u64);
                values.extend(
                    place.range.clone().map(|_| F::from_f64(bound * (2.0 * unit(&mut random) - 1.0))),
                );
            }
            Init::Normal(deviation) => {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                random.set_stream(stream as u64);
                values.extend(place.range.clone().map(|_| F::from_f64(deviation * normal(&mut random))));
            }
        }
    }
    Ok(values)
}

/// As many zeros as [`initial`] gives values.
pub(crate) fn zeros<F: Float>(places: &[ParamSpec]) -> Result<Vec<F>> {
    let count = places.last().map_or(0, |last| last.range.end);
    let mut values = reserved(count)?;
    values.resize(count, F::ZERO);
    Ok(values)
}

/// An empty vector with capacity for `count` elements.
pub(crate) fn reserved<F: Float>(count: usize) -> Result<Vec<F>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| {
        Error::Network(format!("{count} parameters of {} bytes each do not fit in memory", size_of::<F>()))
    })?;
    Ok(values)
}

/// Uniform in 0..1, from the upper 53 bits.
fn unit(random: &mut impl Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Normal with mean 0 and deviation 1 (G. Box and M. Muller, 1958). 1 - unit is never 0.
fn normal(random: &mut impl Rng) -> f64 {
    let (radius, angle) = (-2.0 * (1.0 - unit(random)).ln(), std::f64::consts::TAU * unit(random));
    radius.sqrt() * angle.cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(count: usize) -> Vec<ParamSpec> {
        let place = |i: usize| ParamSpec {
            name: format!("p{i}"),
            shape: vec![1000],
            range: i * 1000..(i + 1) * 1000,
            init: Init::Uniform(0.5),
        };
        (0..count).map(place).collect()
    }

    #[test]
    fn uniform_within_its_bound() {
        let values: Vec<f64> = initial(&places(4), 1).unwrap();
        assert!(values.iter().all(|v| v.abs() <= 0.5));
        let mean = values.iter().sum::<f64>() / 4000.0;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / 4000.0;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0 / 12.0).abs() < 0.005, "{variance}");
    }

    #[test]
    fn normal_with_its_deviation() {
        let place = ParamSpec { init: Init::Normal(0.02), range: 0..40_000, ..places(1).remove(0) };
        let values: Vec<f64> = initial(&[place], 1).unwrap();
        let mean = values.iter().sum::<f64>() / 4e4;
        let deviation = (values.iter().map(|v| v * v).sum::<f64>() / 4e4).sqrt();
        assert!(mean.abs() < 4e-4 && (deviation - 0.02).abs() < 3e-4, "{mean} {deviation}");
        let within = values.iter().filter(|v| v.abs() < 0.02).count() as f64 / 4e4;
        assert!((within - 0.6827).abs() < 0.01, "{within}");
    }

    #[test]
    fn each_parameter_has_its_own_stream() {
        let (two, four): (Vec<f64>, Vec<f64>) =
            (initial(&places(2), 1).unwrap(), initial(&places(4), 1).unwrap());
        assert_eq!(two, four[..2000]);
        assert_ne!(four[..1000], four[1000..2000]);
        assert_ne!(two, initial::<f64>(&places(2), 2).unwrap());
        let rounded: Vec<f32> = initial(&places(2), 1).unwrap();
        assert!(rounded.iter().zip(&two).all(|(&a, &b)| a == b as f32));
    }
}
