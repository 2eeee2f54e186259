//! Random spans of time, drawn from a seed. A draw is identified by its *key*: numbers such as a rule's number and a rank.
//!
//! ```text
//! +5us                 always this
//! uniform(1us,3us)     between the two
//! exp(5us)             exponential with this mean: memoryless, as queueing is
//! lognormal(5us,0.5)   this median, this sigma of the logarithm: skewed, as launch times are
//! pareto(1us,1.5)      at least this, with this tail index: rare long stalls
//! ```
//!
//! A draw is a hash of the seed and of the key ([`splitmix`]), so it does not depend on the caller or the order of calls.
//! Logarithms and powers are those of the `libm` crate, which give the same bits on every machine.

use super::factor::{MILLION, decimal, decimal_text};
use super::span::{span, text};
use crate::Picos;
use crate::hash::splitmix;
use std::fmt;

/// A distribution of spans of time. Shape parameters are integers in millionths, so that they print as they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Noise {
    /// Always the same span.
    Fixed(Picos),
    /// Uniform between two spans.
    Uniform(Picos, Picos),
    /// Exponential with this mean.
    Exponential(Picos),
    /// Lognormal with this median, and this sigma in millionths.
    Lognormal(Picos, u64),
    /// Pareto with this minimum, and this tail index in millionths.
    Pareto(Picos, u64),
}

/// The longest span that is drawn, in picoseconds: about a month, so that sums of draws fit into 64 bits.
const LONGEST: f64 = (1u64 << 61) as f64;

impl Noise {
    /// The span that `draw` selects from the distribution.
    pub fn at(&self, draw: Draw) -> Picos {
        let (u, shape) = (draw.unit(0), |millionths: u64| millionths as f64 / MILLION as f64);
        let picos = match *self {
            Noise::Fixed(span) => return span,
            Noise::Uniform(Picos(low), Picos(high)) => {
                let above = (u128::from(high - low + 1) * u128::from(draw.word(0))) >> 64;
                return Picos(low + above as u64);
            }
            Noise::Exponential(Picos(mean)) => -(mean as f64) * libm::log(u),
            Noise::Lognormal(Picos(median), sigma) => {
                let angle = 2.0 * std::f64::consts::PI * draw.unit(1);
                let normal = libm::sqrt(-2.0 * libm::log(u)) * libm::cos(angle);
                median as f64 * libm::exp(shape(sigma) * normal)
            }
            Noise::Pareto(Picos(least), index) => least as f64 * libm::pow(u, -1.0 / shape(index)),
        };
        Picos(picos.min(LONGEST) as u64)
    }

    pub(super) fn parse(from: &str) -> Option<Noise> {
        if let Some(fixed) = from.strip_prefix('+') {
            return span(fixed).map(Noise::Fixed);
        }
        let (name, inside) = from.strip_suffix(')')?.split_once('(')?;
        let (first, second) = inside.split_once(',').map_or((inside, None), |(a, b)| (a, Some(b.trim())));
        let first = span(first.trim())?;
        let shape = || decimal(second?, 6).filter(|shape| *shape > 0);
        match name.trim() {
            "uniform" => {
                let high = span(second?)?;
                (first <= high && high.0 < u64::MAX).then_some(Noise::Uniform(first, high))
            }
            "exp" if second.is_none() => Some(Noise::Exponential(first)),
            "lognormal" => Some(Noise::Lognormal(first, shape()?)),
            "pareto" => Some(Noise::Pareto(first, shape()?)),
            _ => None,
        }
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Noise::Fixed(span) => write!(f, "+{}", text(*span)),
            Noise::Uniform(low, high) => write!(f, "uniform({},{})", text(*low), text(*high)),
            Noise::Exponential(mean) => write!(f, "exp({})", text(*mean)),
            Noise::Lognormal(median, sigma) => {
                write!(f, "lognormal({},{})", text(*median), decimal_text(*sigma, 6))
            }
            Noise::Pareto(least, index) => write!(f, "pareto({},{})", text(*least), decimal_text(*index, 6)),
        }
    }
}

/// A source of random words: a hash of a seed and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw(u64);

impl Draw {
    /// The draw for a key, which is a sequence of numbers; equal keys have equal draws.
    pub fn of(seed: u64, key: &[u64]) -> Draw {
        Draw(key.iter().fold(splitmix(seed), |state, word| splitmix(state ^ splitmix(*word))))
    }

    /// The n-th random word of the draw.
    pub fn word(self, n: u64) -> u64 {
        splitmix(self.0.wrapping_add(n))
    }

    /// The n-th random number of the draw, above 0 and up to 1.
    fn unit(self, n: u64) -> f64 {
        ((self.word(n) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and median of many draws, in microseconds.
    fn moments(noise: &str) -> (f64, f64) {
        let noise = Noise::parse(noise).unwrap();
        let mut all: Vec<f64> = (0..100_000).map(|n| noise.at(Draw::of(7, &[n])).as_micros()).collect();
        all.sort_by(f64::total_cmp);
        (all.iter().sum::<f64>() / all.len() as f64, all[all.len() / 2])
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found} is not about {expected}");
    }

    #[test]
    fn draws_have_the_mean_and_the_median_of_their_distribution() {
        let (mean, median) = moments("uniform(1us,3us)");
        near(mean, 2.0);
        near(median, 2.0);
        let (mean, median) = moments("exp(5us)");
        near(mean, 5.0);
        near(median, 5.0 * std::f64::consts::LN_2);
        let (mean, median) = moments("lognormal(5us,0.5)");
        near(median, 5.0);
        near(mean, 5.0 * (0.125f64).exp());
        let (mean, median) = moments("pareto(1us,3)");
        near(mean, 1.5);
        near(median, 2f64.powf(1.0 / 3.0));
    }

    /// The draws for one seed are fixed values, because another value would change every recorded run with jitter.
    #[test]
    fn draws_are_pinned_for_every_distribution() {
        let pinned = [
            ("+5us", 5_000_000),
            ("uniform(1us,3us)", 2_207_540),
            ("exp(5us)", 2_522_810),
            ("lognormal(5us,0.5)", 4_253_974),
            ("pareto(1us,1.5)", 1_399_863),
        ];
        for (noise, picos) in pinned {
            assert_eq!(Noise::parse(noise).unwrap().at(Draw::of(1, &[2, 3])), Picos(picos), "{noise}");
        }
        assert_eq!(
            [Draw::of(1, &[2, 3]).word(0), Draw::of(1, &[2, 3]).word(1)],
            [11_137_588_757_717_838_204, 12_873_470_238_829_013_103]
        );
    }

    #[test]
    fn a_draw_depends_on_the_seed_and_on_the_order_of_the_key() {
        let noise = Noise::parse("exp(5us)").unwrap();
        assert_ne!(noise.at(Draw::of(1, &[2, 3])), noise.at(Draw::of(2, &[2, 3])));
        assert_ne!(noise.at(Draw::of(1, &[2, 3])), noise.at(Draw::of(1, &[3, 2])));
    }

    #[test]
    fn a_distribution_that_cannot_be_is_refused() {
        for wrong in [
            "exp()",
            "exp(5)",
            "exp(5us,2)",
            "uniform(3us,1us)",
            "pareto(1us)",
            "pareto(1us,0)",
            "normal(1us,2)",
        ] {
            assert_eq!(Noise::parse(wrong), None, "{wrong}");
        }
    }
}
