//! Dropout (N. Srivastava et al., JMLR 15, 2014), with random draws that do not depend on threads or ranks.
//!
//! ```text
//! y = x / (1 - p) where a draw is p or more, else 0           dx = dy by the same draws, drawn again
//! draw of a sample's element e = Philox4x32-10(counter [e / 4, step, sample, layer], key seed)[e % 4] / 2^32
//! ```
//!
//! Philox is counter-based (J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): there is no state, so the draws do
//! not depend on the thread that makes them, and the backward pass can repeat them.

use super::simd::vectorised;
use super::thread_pool::share_rows;
use super::{Float, OpCost};
use std::ops::Range;

/// The stream of random draws of one dropout layer in one step, for some samples. Ranks and micro-batches number their samples as in the
/// whole step, and so have the draws that one rank with all samples would have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropoutStream {
    /// The run's seed.
    pub seed: u64,
    /// The step of the run.
    pub step: u32,
    /// The layer.
    pub layer: u32,
    /// The number of the first sample among those of the step.
    pub first: u32,
    /// The distance to the number of the next sample.
    pub stride: u32,
}

/// The draws of one sample: one for each of its elements.
#[derive(Clone, Copy, Debug)]
pub struct SampleDraws {
    seed: u64,
    key: [u32; 3],
}

impl DropoutStream {
    /// The number of words of a stream.
    pub const WORDS: usize = 6;

    /// The draws of the sample with index `at` in the pass.
    pub fn sample(&self, at: usize) -> SampleDraws {
        let sample = self.first.wrapping_add(self.stride.wrapping_mul(at as u32));
        SampleDraws { seed: self.seed, key: [self.step, sample, self.layer] }
    }

    /// The stream as words, for a backward pass that repeats the draws.
    pub fn words(&self) -> [u32; DropoutStream::WORDS] {
        [self.seed as u32, (self.seed >> 32) as u32, self.step, self.first, self.stride, self.layer]
    }

    /// The stream of these [words](DropoutStream::words); `None` unless there are [`DropoutStream::WORDS`].
    pub fn of_words(words: &[u32]) -> Option<DropoutStream> {
        let &[low, high, step, first, stride, layer] = words else { return None };
        Some(DropoutStream { seed: u64::from(high) << 32 | u64::from(low), step, layer, first, stride })
    }
}

/// The number of counters that Philox takes together, each a lane of vectors.
const LANES: usize = 16;
/// The number of draws that these counters give.
const TOGETHER: usize = 4 * LANES;

impl SampleDraws {
    /// The draws 4 i to 4 i + 3, uniform in 0..2^32.
    pub fn four(&self, i: u32) -> [u32; 4] {
        let [a, b, c, d, ..] = self.block_from(i);
        [a, b, c, d]
    }

    /// The draws from 4 `group` on, uniform in 0..2^32.
    #[inline(always)]
    fn block_from(&self, group: u32) -> [u32; TOGETHER] {
        let mut counters = [[0; LANES]; 4];
        counters[0] = std::array::from_fn(|lane| group.wrapping_add(lane as u32));
        for (words, word) in counters[1..].iter_mut().zip(self.key) {
            *words = [word; LANES];
        }
        let words = philox(counters, [self.seed as u32, (self.seed >> 32) as u32]);
        let mut draws = [0; TOGETHER];
        for lane in 0..LANES {
            for word in 0..4 {
                draws[4 * lane + word] = words[word][lane];
            }
        }
        draws
    }
}

/// Philox4x32-10: ten rounds over counters, given as their first words, their second words and so on.
#[inline(always)]
fn philox(mut counters: [[u32; LANES]; 4], mut key: [u32; 2]) -> [[u32; LANES]; 4] {
    for _ in 0..10 {
        let [a, b, c, d] = counters;
        for lane in 0..LANES {
            let (first, second) = (u64::from(a[lane]) * 0xD251_1F53, u64::from(c[lane]) * 0xCD9E_8D57);
            counters[0][lane] = (second >> 32) as u32 ^ b[lane] ^ key[0];
            counters[1][lane] = second as u32;
            counters[2][lane] = (first >> 32) as u32 ^ d[lane] ^ key[1];
            counters[3][lane] = first as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counters
}

/// Calls `then` with the draws of at most `count` elements from `first` on, until all draws have been passed: with a range of 0..`count`,
/// and the draws of this range.
#[inline(always)]
fn in_blocks(draws: &SampleDraws, first: usize, count: usize, mut then: impl FnMut(Range<usize>, &[u32])) {
    let mut done = 0;
    while done < count {
        let (group, skip) = ((first + done) / 4, (first + done) % 4);
        let end = count.min(done + TOGETHER - skip);
        then(done..end, &draws.block_from(group as u32)[skip..skip + end - done]);
        done = end;
    }
}

vectorised! {
    fn copy_kept<F>(draws: &SampleDraws, first: usize, bound: u32, scale: F, x: &[F], y: &mut [F]) {
        in_blocks(draws, first, x.len(), |range, draws| {
            for ((y, &x), &draw) in y[range.clone()].iter_mut().zip(&x[range]).zip(draws) {
                *y = if draw >= bound { x * scale } else { F::ZERO };
            }
        });
    }

    fn keep<F>(draws: &SampleDraws, first: usize, bound: u32, scale: F, x: &mut [F]) {
        in_blocks(draws, first, x.len(), |range, draws| {
            for (x, &draw) in x[range].iter_mut().zip(draws) {
                *x = if draw >= bound { *x * scale } else { F::ZERO };
            }
        });
    }
}

/// Dropout that sets a share of its values to 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutKernel {
    /// The share of zeros, p: at least 0 and less than 1.
    pub share: f64,
}

impl DropoutKernel {
    /// Computes `y` from `x`, whole samples of `width` numbers. Applied to `dy` and `dx`, the same call is the backward pass.
    pub fn apply<F: Float>(&self, stream: DropoutStream, width: usize, x: &[F], y: &mut [F]) {
        self.apply_to(stream, std::slice::from_ref(&(0..width)), x, y);
    }

    /// [`DropoutKernel::apply`] to parts of samples: `x` contains these `runs` of elements of each sample, in order.
    pub fn apply_to<F: Float>(&self, stream: DropoutStream, runs: &[Range<usize>], x: &[F], y: &mut [F]) {
        let width: usize = runs.iter().map(Range::len).sum();
        assert!(x.len() == y.len() && x.len().is_multiple_of(width.max(1)));
        let (bound, scale) = self.rule::<F>();
        share_rows(y, 1, |range, y| {
            let mut at = range.start;
            while at < range.end {
                // `left`: the rest of the run that contains the sample's next element, from that element on.
                let (mut skip, mut left) = (at % width, 0..0);
                for run in runs {
                    if skip < run.len() {
                        left = run.start + skip..run.end;
                        break;
                    }
                    skip -= run.len();
                }
                let len = left.len().min(range.end - at);
                let (x, y) = (&x[at..at + len], &mut y[at - range.start..][..len]);
                copy_kept(&stream.sample(at / width), left.start, bound, scale, x, y);
                at += len;
            }
        });
    }

    /// Applies dropout to `x` in place, by the draws of a sample's elements from `first` on.
    pub fn row<F: Float>(&self, draws: SampleDraws, first: usize, x: &mut [F]) {
        let (bound, scale) = self.rule::<F>();
        keep(&draws, first, bound, scale, x);
    }

    /// The least draw with which a number is kept, and the factor on kept numbers.
    fn rule<F: Float>(&self) -> (u32, F) {
        ((self.share * 4_294_967_296.0) as u32, F::from_f64(1.0 / (1.0 - self.share)))
    }

    /// The cost of a pass over `elements`.
    pub fn cost<F: Float>(elements: usize) -> OpCost {
        OpCost::launch(20 * elements, 2 * elements, size_of::<F>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Philox gives the first three vectors of Random123's `kat_vectors` for philox4x32-10.
    #[test]
    fn published_values() {
        let philox = |counter: [u32; 4], key| {
            philox(counter.map(|word| [word; LANES]), key).map(|words| words[LANES - 1])
        };
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(
            philox(counter, [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
