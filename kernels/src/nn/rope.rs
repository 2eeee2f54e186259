//! Rotary position embedding (J. Su et al., "RoFormer", arXiv:2104.09864), as in Hugging Face's `LlamaForCausalLM`.
//!
//! ```text
//! x [R, C]: of each row, heads of D numbers to rotate, then numbers that stay. Row r is at position t = r mod T of its sample.
//! (a, b) = (x[i], x[i + D/2]) becomes (a cos f - b sin f, b cos f + a sin f),     f = t base^(-2 i / D),     i < D/2
//! ```
//!
//! The backward pass rotates the gradient by -f.

use super::thread_pool::share_rows;
use super::{Float, OpCost};

/// The shape of a rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeShape {
    /// The number of positions of a sample, T.
    pub positions: usize,
    /// The number of elements of a row, C.
    pub width: usize,
    /// The number of heads that are rotated, from the beginning of a row on.
    pub heads: usize,
    /// The number of elements of a head, D, which is even.
    pub depth: usize,
    /// The base of the frequencies.
    pub base: f64,
}

impl RopeShape {
    /// The cosine and the sine of each pair's angle at each position, T x D/2.
    pub fn angles(&self) -> Vec<[f64; 2]> {
        let pairs = self.depth / 2;
        let angle = |t: usize, i: usize| t as f64 * self.base.powf(-2.0 * i as f64 / self.depth as f64);
        let all = (0..self.positions).flat_map(|t| (0..pairs).map(move |i| angle(t, i)));
        all.map(|angle| [angle.cos(), angle.sin()]).collect()
    }

    /// Rotates the heads of each row of whole samples, in place, by these [angles](RopeShape::angles), or back.
    pub fn rotate<F: Float>(&self, angles: &[[f64; 2]], back: bool, x: &mut [F]) {
        assert!(self.depth.is_multiple_of(2) && self.heads * self.depth <= self.width);
        assert!(x.len().is_multiple_of(self.positions * self.width));
        assert_eq!(angles.len(), self.positions * self.depth / 2);
        let pairs = self.depth / 2;
        let sign = if back { -1.0 } else { 1.0 };
        let cast = |[cos, sin]: &[f64; 2]| [F::from_f64(*cos), F::from_f64(sign * sin)];
        let angles: Vec<[F; 2]> = angles.iter().map(cast).collect();
        share_rows(x, self.width, |rows, x| {
            for (row, x) in rows.zip(x.chunks_exact_mut(self.width)) {
                let angles = &angles[row % self.positions * pairs..][..pairs];
                for head in x[..self.heads * self.depth].chunks_exact_mut(self.depth) {
                    let (first, second) = head.split_at_mut(pairs);
                    for ((a, b), &[cos, sin]) in first.iter_mut().zip(second).zip(angles) {
                        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                    }
                }
            }
        });
    }

    /// The cost of [`RopeShape::rotate`] over `n` samples.
    pub fn cost<F: Float>(&self, n: usize) -> OpCost {
        let rotated = n * self.positions * self.heads * self.depth;
        OpCost::launch(3 * rotated, 2 * rotated + self.positions * self.depth, size_of::<F>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::gradcheck::{dot, numbers};

    const SHAPE: RopeShape = RopeShape { positions: 5, width: 10, heads: 2, depth: 4, base: 100.0 };

    /// A rotation is the transpose of the rotation back, and leaves the rest of a row, and position 0, as they are.
    #[test]
    fn rotations_are_orthogonal_and_by_position() {
        let (x, y) = (numbers(100, 1), numbers(100, 2));
        let (mut forward, mut back) = (x.clone(), y.clone());
        SHAPE.rotate(&SHAPE.angles(), false, &mut forward);
        SHAPE.rotate(&SHAPE.angles(), true, &mut back);
        assert!((dot(&forward, &y) - dot(&x, &back)).abs() < 1e-12);
        for (row, (before, after)) in x.chunks_exact(10).zip(forward.chunks_exact(10)).enumerate() {
            assert_eq!((before[8..] == after[8..], before == after), (true, row % 5 == 0), "row {row}");
        }
        // Second pair of the second head at position 3: by 3 / sqrt(100).
        let (angle, at) = (0.3f64, 30 + 4 + 1);
        assert!((forward[at] - (x[at] * angle.cos() - x[at + 2] * angle.sin())).abs() < 1e-15);
        assert!((forward[at + 2] - (x[at + 2] * angle.cos() + x[at] * angle.sin())).abs() < 1e-15);
    }
}
