//! Softmax and cross-entropy in one, averaged over the batch.
//!
//! ```text
//! p[n, c] = exp(x[n, c]) / sum over c of exp(x[n, c])
//! loss    = mean over n of -ln p[n, label n]
//! dx      = (p - onehot(label)) / N
//! ```
//!
//! The row's maximum is taken off before exp, so nothing overflows.

use super::{Cost, Float};

/// Cross-entropy over `classes` logits per sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossEntropy {
    /// Logits per sample, C.
    pub classes: usize,
}

impl CrossEntropy {
    /// The sum over the batch of -ln p(label) (not yet divided), for evaluation.
    ///
    /// # Panics
    /// If a label is not below `classes`.
    pub fn sum<F: Float>(&self, x: &[F], labels: &[u32]) -> F {
        assert_eq!(x.len(), labels.len() * self.classes);
        x.chunks_exact(self.classes).zip(labels).fold(F::ZERO, |sum, (row, &label)| {
            let (max, total) = normaliser(row);
            sum + (total.ln() - (row[label as usize] - max))
        })
    }

    /// The mean loss of the batch; `dx` becomes the gradient of `scale` times it by the logits. An empty batch has
    /// loss 0.
    pub fn forward_backward<F: Float>(&self, x: &[F], labels: &[u32], scale: F, dx: &mut [F]) -> F {
        assert_eq!(x.len(), dx.len());
        if labels.is_empty() {
            return F::ZERO;
        }
        let n = F::from_f64(labels.len() as f64);
        let divisor = n / scale;
        let rows = x.chunks_exact(self.classes).zip(dx.chunks_exact_mut(self.classes));
        for ((row, out), &label) in rows.zip(labels) {
            let (max, total) = normaliser(row);
            out.iter_mut().zip(row).for_each(|(out, &x)| *out = (x - max).exp() / total / divisor);
            out[label as usize] = out[label as usize] - F::ONE / divisor;
        }
        self.sum(x, labels) / n
    }

    /// How many samples have their largest logit (the first of equals) at their label.
    pub fn correct<F: Float>(&self, x: &[F], labels: &[u32]) -> u64 {
        let best = |row: &[F]| (1..row.len()).fold(0, |best, c| if row[c] > row[best] { c } else { best });
        x.chunks_exact(self.classes).zip(labels).filter(|(row, label)| best(row) == **label as usize).count()
            as u64
    }

    /// Cost of [`CrossEntropy::forward_backward`] over `n` samples.
    pub fn cost<F: Float>(&self, n: usize) -> Cost {
        Cost::launch(8 * n * self.classes, 2 * n * self.classes, size_of::<F>())
    }
}

/// (max x, sum of exp(x - max)) of a row.
fn normaliser<F: Float>(row: &[F]) -> (F, F) {
    let max = row.iter().fold(row[0], |max, &x| if x > max { x } else { max });
    (max, row.iter().fold(F::ZERO, |sum, &x| sum + (x - max).exp()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::gradcheck::{check, numbers};

    #[test]
    fn gradients() {
        let (loss, labels, x) = (CrossEntropy { classes: 5 }, [0, 4, 2, 2], numbers(20, 7));
        let mut dx = vec![9.0; 20];
        loss.forward_backward(&x, &labels, 1.0, &mut dx);
        check("x", &x, &dx, |x| loss.forward_backward(x, &labels, 1.0, &mut [0.0; 20]));
    }

    #[test]
    fn equal_logits_cost_the_logarithm_of_their_number() {
        let mut dx = [0.0; 8];
        let loss = CrossEntropy { classes: 4 }.forward_backward(&[1e30f64; 8], &[1, 2], 1.0, &mut dx);
        assert!((loss - 4f64.ln()).abs() < 1e-15);
        assert_eq!(dx[1], (0.25 - 1.0) / 2.0);
    }

    #[test]
    fn the_first_of_equal_logits_counts() {
        assert_eq!(CrossEntropy { classes: 2 }.correct(&[1.0f32, 1.0, 0.0, 1.0, 2.0, 1.0], &[0, 1, 1]), 2);
    }
}
