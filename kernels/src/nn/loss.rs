//! Losses over a batch: cross-entropy after softmax, and the mean squared distance from the one-hot label.
//!
//! ```text
//! cross-entropy   p[n, c] = exp(x[n, c]) / sum over c of exp(x[n, c])
//!                 loss    = mean over n of -ln p[n, label n]                      dx = (p - onehot) / N
//! mse             loss    = mean over n, c of (x[n, c] - onehot[n, c])^2          dx = 2 (x - onehot) / (N C)
//! ```
//!
//! Each row's maximum is subtracted before exp, so that exp does not overflow.

use super::simd::vectorised;
use super::thread_pool::share_rows_of;
use super::{Float, OpCost};

/// The loss that training minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossKind {
    /// Cross-entropy after softmax.
    #[default]
    CrossEntropy,
    /// The mean squared error.
    Mse,
}

/// A loss over rows of `classes` logits; each row has one label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The number of logits per row, C.
    pub classes: usize,
    /// The kind of loss.
    pub kind: LossKind,
}

vectorised! {
    /// Writes each row's loss, and each row's gradient divided by `divisor`.
    fn entropy<F>(x: &[F], labels: &[u32], classes: usize, divisor: F, dx: &mut [F], losses: &mut [F]) {
        let rows = x.chunks_exact(classes).zip(dx.chunks_exact_mut(classes));
        for (((row, out), &label), loss) in rows.zip(labels).zip(losses) {
            let max = super::sum::largest(row);
            out.iter_mut().zip(row).for_each(|(out, &x)| *out = (x - max).exp_fast());
            let total = F::from_f64(super::sum::sum(out, |e| e));
            *loss = total.ln() - (row[label as usize] - max);
            let share = F::ONE / (total * divisor);
            out.iter_mut().for_each(|out| *out = *out * share);
            out[label as usize] = out[label as usize] - F::ONE / divisor;
        }
    }

    fn squares<F>(x: &[F], labels: &[u32], classes: usize, divisor: F, dx: &mut [F], losses: &mut [F]) {
        let two = F::ONE + F::ONE;
        let count = F::from_f64(classes as f64);
        let rows = x.chunks_exact(classes).zip(dx.chunks_exact_mut(classes));
        for (((row, out), &label), loss) in rows.zip(labels).zip(losses) {
            out.copy_from_slice(row);
            out[label as usize] = out[label as usize] - F::ONE;
            *loss = F::from_f64(super::sum::sum(out, |d| d * d) / classes as f64);
            out.iter_mut().for_each(|out| *out = two * *out / count / divisor);
        }
    }
}

impl Loss {
    /// The cross-entropy loss over this many classes.
    pub fn cross_entropy(classes: usize) -> Loss {
        Loss { classes, kind: LossKind::CrossEntropy }
    }

    /// The sum of the rows' losses, not divided by their number, for evaluation.
    ///
    /// # Panics
    /// If a label is not below `classes`.
    pub fn sum<F: Float>(&self, x: &[F], labels: &[u32]) -> F {
        self.rows(x, labels, F::ONE, &mut vec![F::ZERO; x.len()])
    }

    /// The mean loss of the rows; `dx` becomes the gradient by the logits of `scale` times the mean. The loss of no rows is 0.
    ///
    /// # Panics
    /// If a label is not below `classes`.
    pub fn forward_backward<F: Float>(&self, x: &[F], labels: &[u32], scale: F, dx: &mut [F]) -> F {
        if labels.is_empty() {
            return F::ZERO;
        }
        let n = F::from_f64(labels.len() as f64);
        self.rows(x, labels, n / scale, dx) / n
    }

    fn rows<F: Float>(&self, x: &[F], labels: &[u32], divisor: F, dx: &mut [F]) -> F {
        assert!(x.len() == dx.len() && x.len() == labels.len() * self.classes);
        let mut losses = vec![F::ZERO; labels.len()];
        share_rows_of(x.len(), (dx, self.classes), (&mut losses, 1), |rows, dx, losses| {
            let (x, labels) = (&x[rows.start * self.classes..rows.end * self.classes], &labels[rows]);
            match self.kind {
                LossKind::CrossEntropy => entropy(x, labels, self.classes, divisor, dx, losses),
                LossKind::Mse => squares(x, labels, self.classes, divisor, dx, losses),
            }
        });
        losses.into_iter().fold(F::ZERO, |sum, loss| sum + loss)
    }

    /// The number of rows whose largest logit (the first of equal ones) is at their label.
    pub fn correct<F: Float>(&self, x: &[F], labels: &[u32]) -> u64 {
        let best = |row: &[F]| (1..row.len()).fold(0, |best, c| if row[c] > row[best] { c } else { best });
        x.chunks_exact(self.classes).zip(labels).filter(|(row, label)| best(row) == **label as usize).count()
            as u64
    }

    /// The cost of [`Loss::forward_backward`] over `n` rows.
    pub fn cost<F: Float>(&self, n: usize) -> OpCost {
        OpCost::launch(8 * n * self.classes, 2 * n * self.classes, size_of::<F>())
    }
}
