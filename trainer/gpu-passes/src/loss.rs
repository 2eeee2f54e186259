//! Losses and right answers on a device, also of classes that the ranks of the tensor axis share.

use super::passes::{PassContext, Passes};
use crate::Result;
use allfold_collectives::ReduceOp;
use allfold_cuda::{Memory, Slice, launch};
use allfold_kernels::DType;
use allfold_kernels::nn::{ClassSplit, LossKind};
use std::sync::Arc;

impl Passes {
    /// Computes the loss of each row of the last forward pass into `losses`. With `divisor`, also computes the gradient
    /// with respect to the logits of the losses' sum divided by `divisor`.
    pub fn loss(
        &mut self,
        with: &mut PassContext<'_, '_>,
        divisor: Option<f32>,
        losses: Slice<'_>,
    ) -> Result<()> {
        let last = self.network.layers().len();
        let (dtype, logits) = self.logits(with.n)?;
        let dx = divisor.map(|_| with.queue.memory(logits.len())).transpose()?;
        let into = (dx.as_ref().map(Memory::all), losses);
        let (labels, divisor, kind) =
            (self.labels_of(with.n)?, divisor.unwrap_or(1.0), self.network.loss().kind);
        if let Some(classes) = self.class_part() {
            split_loss(with, (classes, kind), (logits, labels), divisor, into)?;
        } else {
            let by = match kind {
                LossKind::CrossEntropy => launch::cross_entropy,
                LossKind::Mse => launch::mse,
            };
            let logits = (logits, self.network.classes());
            by(with.queue, dtype, logits, labels, divisor, into.0, into.1)?;
        }
        self.slot.act_grads[last] = dx.map(Arc::new);
        Ok(())
    }

    /// Writes, for each row of the last forward pass, 1 (u32) if its largest logit is its label's, else 0.
    pub fn hits(&self, with: &mut PassContext<'_, '_>, hits: Slice<'_>) -> Result<()> {
        let ((dtype, logits), labels) = (self.logits(with.n)?, self.labels_of(with.n)?);
        let Some(classes) = self.class_part() else {
            launch::correct(with.queue, dtype, (logits, self.network.classes()), labels, hits)?;
            return Ok(());
        };
        let best = with.queue.memory(2 * hits.len())?;
        classes.best(with.queue, logits, best.all())?;
        with.sum_parts(DType::I64, ReduceOp::Max, best.all())?;
        launch::class_hits(with.queue, best.all(), labels, hits)?;
        Ok(())
    }

    /// This rank's classes, if the ranks of the tensor axis share them.
    fn class_part(&self) -> Option<launch::ClassPart> {
        let ClassSplit { first, total } = self.network.class_split()?;
        let (dtype, classes) = (self.precision.acts[self.network.layers().len()], self.network.classes());
        Some(launch::ClassPart { dtype, classes, first, total })
    }
}

/// The loss of rows whose classes the ranks of the tensor axis share.
fn split_loss(
    with: &mut PassContext<'_, '_>,
    (classes, kind): (launch::ClassPart, LossKind),
    of: (Slice<'_>, Slice<'_>),
    divisor: f32,
    (dx, losses): (Option<Slice<'_>>, Slice<'_>),
) -> Result<()> {
    let queue = with.queue;
    if kind == LossKind::Mse {
        classes.mse(queue, of, divisor, (dx, losses))?;
        return with.sum_parts(DType::F32, ReduceOp::Sum, losses);
    }
    let (most, sums) = (queue.memory(losses.len())?, queue.memory(2 * losses.len())?);
    classes.largest(queue, of.0, most.all())?;
    with.sum_parts(DType::F32, ReduceOp::Max, most.all())?;
    classes.sums(queue, of, most.all(), sums.all())?;
    with.sum_parts(DType::F32, ReduceOp::Sum, sums.all())?;
    classes.cross_entropy(queue, of, (most.all(), sums.all()), divisor, (dx, losses))?;
    Ok(())
}
