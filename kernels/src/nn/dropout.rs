//! Dropout (N. Srivastava et al., JMLR 15, 2014), with random draws that are a function of their place in the run.
//!
//! ```text
//! y = x / (1 - p) where a draw is p or more, else 0           dx = dy by the same draws, drawn again
//! draw i = Philox4x32-10(counter i / 4, key)[i % 4] / 2^32
//! ```
//!
//! Philox is counter-based (J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): no state is kept, so the
//! draws do not depend on the thread that makes them, and the backward pass can make them again.

use super::thread_pool::share_rows;
use super::{Float, OpCost};

/// A stream of random draws: one for each use of dropout in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropoutStream {
    /// The run's seed.
    pub seed: u64,
    /// The key of this use of dropout: made from step, micro-batch, rank and layer.
    pub place: [u32; 3],
}

impl DropoutStream {
    /// The draws 4 i to 4 i + 3, uniform in 0..2^32.
    #[inline]
    pub fn four(&self, i: u32) -> [u32; 4] {
        let [a, b, c] = self.place;
        philox([i, a, b, c], [self.seed as u32, (self.seed >> 32) as u32])
    }
}

/// Philox4x32-10: ten rounds over a counter.
#[inline]
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [a, b, c, d] = counter;
        let (first, second) = (u64::from(a) * 0xD251_1F53, u64::from(c) * 0xCD9E_8D57);
        counter = [
            (second >> 32) as u32 ^ b ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ d ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// Dropout that sets a share of its values to 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutKernel {
    /// The share of zeros, p: at least 0 and less than 1.
    pub share: f64,
}

impl DropoutKernel {
    /// Computes `y` from `x`. Applied to `dy` and `dx`, the same call is the backward pass.
    pub fn apply<F: Float>(&self, stream: DropoutStream, x: &[F], y: &mut [F]) {
        assert_eq!(x.len(), y.len());
        let (bound, scale) = self.rule::<F>();
        let groups = x.len().div_ceil(4);
        // Whole groups of four draws go to one thread.
        let whole = y.len() / 4 * 4;
        let (body, rest) = y.split_at_mut(whole);
        let one = |i: usize, x: &[F], y: &mut [F]| {
            for ((y, &x), draw) in y.iter_mut().zip(x).zip(stream.four(i as u32)) {
                *y = if draw >= bound { x * scale } else { F::ZERO };
            }
        };
        share_rows(body, 4, |range, y| {
            let x = &x[range.start * 4..range.end * 4];
            range.zip(x.chunks_exact(4).zip(y.chunks_exact_mut(4))).for_each(|(i, (x, y))| one(i, x, y));
        });
        if whole < x.len() {
            one(groups - 1, &x[whole..], rest);
        }
    }

    /// Applies dropout to `x` in place, with the draws from number 4 * `first` on.
    pub fn row<F: Float>(&self, stream: DropoutStream, first: u32, x: &mut [F]) {
        let (bound, scale) = self.rule::<F>();
        for (x, i) in x.chunks_mut(4).zip(first..) {
            for (x, draw) in x.iter_mut().zip(stream.four(i)) {
                *x = if draw >= bound { *x * scale } else { F::ZERO };
            }
        }
    }

    /// The least draw that keeps a number, and the factor on kept numbers.
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
    use crate::nn::ThreadPool;

    /// Philox gives the first three vectors of Random123's `kat_vectors` for philox4x32-10.
    #[test]
    fn published_values() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(
            philox(counter, [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn the_share_of_zeros_is_right_and_does_not_depend_on_threads() {
        let x = vec![1.0f32; 100_003];
        let stream = |step| DropoutStream { seed: 7, place: [step, 0, 0] };
        let run = |threads, step| {
            let mut y = vec![9.0; x.len()];
            ThreadPool::new(threads).enter(|| DropoutKernel { share: 0.25 }.apply(stream(step), &x, &mut y));
            y
        };
        let y = run(1, 0);
        assert!(y.iter().all(|&y| y == 0.0 || y == 1.0 / 0.75));
        let zeros = y.iter().filter(|&&y| y == 0.0).count() as f64 / x.len() as f64;
        assert!((zeros - 0.25).abs() < 0.005, "{zeros}");
        assert_eq!(y, run(3, 0));
        assert_ne!(y, run(1, 1));
    }
}
