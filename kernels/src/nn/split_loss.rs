//! Losses of rows whose classes several ranks share: each rank has the logits of some classes (M. Shoeybi et al., "Megatron-LM",
//! 2019, section 3).
//!
//! ```text
//! cross-entropy   ranks exchange, for each row, the largest logit, the sum of exponentials and the label's logit: 3 numbers
//! mse             ranks exchange the sum of squares of each row
//! ```

use super::simd::vectorised;
use super::thread_pool::share_rows_of;
use super::{Float, Loss, LossKind};

/// The classes whose logits a rank has: as many as the rank's [`Loss::classes`], from `first` on, of `total` classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSplit {
    /// The first class.
    pub first: usize,
    /// The number of classes of all ranks together.
    pub total: usize,
}

/// How ranks combine values, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassReduction {
    /// The sum over all ranks.
    Sum,
    /// The largest over all ranks.
    Max,
}

impl ClassSplit {
    /// The index of a label among this rank's `classes` classes; `None` for a class of another rank.
    fn own(&self, label: u32, classes: usize) -> Option<usize> {
        (label as usize).checked_sub(self.first).filter(|class| *class < classes)
    }
}

vectorised! {
    /// The exponentials of each row's logits less the row's largest; their sum, and the label's logit less the largest.
    fn exponentials<F>(x: &[F], labels: &[u32], split: ClassSplit, largest: &[F], out: &mut [F], sums: &mut [F]) {
        let classes = x.len() / labels.len().max(1);
        let rows = x.chunks_exact(classes).zip(out.chunks_exact_mut(classes));
        for ((((row, out), &label), &max), sums) in rows.zip(labels).zip(largest).zip(sums.chunks_exact_mut(2)) {
            out.iter_mut().zip(row).for_each(|(out, &x)| *out = (x - max).exp_fast());
            sums[0] = F::from_f64(super::sum::sum(out, |e| e));
            sums[1] = split.own(label, classes).map_or(F::ZERO, |class| row[class] - max);
        }
    }

    /// The differences from the one-hot label, and the sum of their squares.
    fn differences<F>(x: &[F], labels: &[u32], split: ClassSplit, out: &mut [F], sums: &mut [F]) {
        let classes = x.len() / labels.len().max(1);
        let rows = x.chunks_exact(classes).zip(out.chunks_exact_mut(classes));
        for (((row, out), &label), sum) in rows.zip(labels).zip(sums) {
            out.copy_from_slice(row);
            if let Some(class) = split.own(label, classes) {
                out[class] = out[class] - F::ONE;
            }
            *sum = F::from_f64(super::sum::sum(out, |d| d * d));
        }
    }
}

impl Loss {
    /// [`Loss::forward_backward`] where `x` are the logits of this rank's classes, `split` among all. Every rank passes the same
    /// labels and a `combine` that replaces values by the combination of all ranks' values; all ranks get the same loss.
    pub fn forward_backward_split<F: Float>(
        &self,
        split: ClassSplit,
        (x, labels): (&[F], &[u32]),
        scale: F,
        dx: &mut [F],
        combine: &mut dyn FnMut(ClassReduction, &mut [F]),
    ) -> F {
        assert!(x.len() == dx.len() && x.len() == labels.len() * self.classes);
        if labels.is_empty() {
            return F::ZERO;
        }
        let n = F::from_f64(labels.len() as f64);
        if self.kind == LossKind::CrossEntropy {
            return self.entropy(split, (x, labels), n / scale, dx, combine) / n;
        }
        let mut sums = vec![F::ZERO; labels.len()];
        differences(x, labels, split, dx, &mut sums);
        combine(ClassReduction::Sum, &mut sums);
        let total = F::from_f64(split.total as f64);
        dx.iter_mut().for_each(|dx| *dx = (F::ONE + F::ONE) * *dx * scale / total / n);
        sums.into_iter().fold(F::ZERO, |sum, row| sum + row) / total / n
    }

    fn entropy<F: Float>(
        &self,
        split: ClassSplit,
        (x, labels): (&[F], &[u32]),
        divisor: F,
        dx: &mut [F],
        combine: &mut dyn FnMut(ClassReduction, &mut [F]),
    ) -> F {
        let classes = self.classes;
        let mut largest: Vec<F> = x.chunks_exact(classes).map(super::sum::largest).collect();
        combine(ClassReduction::Max, &mut largest);
        let mut sums = vec![F::ZERO; 2 * labels.len()];
        share_rows_of(x.len(), (dx, classes), (&mut sums, 2), |rows, dx, sums| {
            let x = &x[rows.start * classes..rows.end * classes];
            exponentials(x, &labels[rows.clone()], split, &largest[rows], dx, sums);
        });
        combine(ClassReduction::Sum, &mut sums);
        let mut loss = F::ZERO;
        for ((dx, sums), &label) in dx.chunks_exact_mut(classes).zip(sums.chunks_exact(2)).zip(labels) {
            loss += sums[0].ln() - sums[1];
            let share = F::ONE / (sums[0] * divisor);
            dx.iter_mut().for_each(|dx| *dx = *dx * share);
            if let Some(class) = split.own(label, classes) {
                dx[class] = dx[class] - F::ONE / divisor;
            }
        }
        loss
    }
}
