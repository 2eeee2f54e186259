//! Losses of rows whose classes several ranks share: between the launches, ranks combine the values of each row.

use super::{blocks, holds, run, trained, writes_if};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;

/// This rank's classes of a row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassPart {
    /// The type of the logits.
    pub dtype: DType,
    /// The number of this rank's classes; at least 1.
    pub classes: usize,
    /// The first of this rank's classes.
    pub first: usize,
    /// The number of classes of all ranks.
    pub total: usize,
}

impl ClassPart {
    /// The number of rows of the logits `x`.
    fn rows(&self, x: Slice<'_>) -> Result<u64> {
        trained(self.dtype)?;
        let (all, classes) = (x.elements(self.dtype.size())?, self.classes as u64);
        match classes > 0 && all.is_multiple_of(classes) {
            true => Ok(all / classes),
            false => Err(Error::Argument(format!("{all} logits are no rows of {classes} classes"))),
        }
    }

    fn launch(&self, queue: &Queue, stem: &str, rows: u64, arguments: Arguments) -> Result<()> {
        let grid = [blocks(queue, rows * 256, 1), 1, 1];
        run(queue, Kernel::typed(Family::SplitLoss, stem, self.dtype), grid, arguments)
    }

    fn checked(&self, x: Slice<'_>, labels: Slice<'_>, each: Slice<'_>) -> Result<u64> {
        let rows = self.rows(x)?;
        holds("the labels", labels, rows, 4)?;
        holds("a value for each row", each, rows, 4)?;
        Ok(rows)
    }

    /// The largest logit of each row (f32); ranks combine it by their maximum.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn largest(&self, queue: &Queue, x: Slice<'_>, most: Slice<'_>) -> Result<()> {
        let rows = self.rows(x)?;
        holds("the largest logits", most, rows, 4)?;
        if rows > 0 {
            let arguments = Arguments::new().reads(x).with(rows).with(self.classes as u64).writes(most);
            self.launch(queue, "class_max", rows, arguments)?;
        }
        Ok(())
    }

    /// For each row, the sum of the exponentials of its logits less the largest of all ranks, and the label's logit less the largest,
    /// 0 for another rank's label (f32, `[N, 2]`); ranks combine them by their sum.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn sums(
        &self,
        queue: &Queue,
        (x, labels): (Slice<'_>, Slice<'_>),
        most: Slice<'_>,
        sums: Slice<'_>,
    ) -> Result<()> {
        let rows = self.checked(x, labels, most)?;
        holds("the sums", sums, 2 * rows, 4)?;
        if rows > 0 {
            let arguments = Arguments::new().reads(x).reads(labels).reads(most);
            let arguments = arguments.with(rows).with(self.classes as u64).with(self.first as u64);
            self.launch(queue, "class_sums", rows, arguments.writes(sums))?;
        }
        Ok(())
    }

    /// The cross-entropy of each row (f32) from the values that ranks have combined, and the gradient of the losses' sum over `divisor`
    /// by this rank's logits.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn cross_entropy(
        &self,
        queue: &Queue,
        (x, labels): (Slice<'_>, Slice<'_>),
        (most, sums): (Slice<'_>, Slice<'_>),
        divisor: f32,
        (dx, loss): (Option<Slice<'_>>, Slice<'_>),
    ) -> Result<()> {
        let rows = self.checked(x, labels, most)?;
        holds("the sums", sums, 2 * rows, 4)?;
        let arguments = Arguments::new().reads(x).reads(labels).reads(most).reads(sums);
        self.differentiate(queue, ("class_entropy", rows, arguments), x, divisor, (dx, loss))
    }

    /// This rank's part of the mean squared distance of each row (f32) from the one-hot label, which ranks combine by its sum, and the
    /// gradient as in [`ClassPart::cross_entropy`].
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn mse(
        &self,
        queue: &Queue,
        (x, labels): (Slice<'_>, Slice<'_>),
        divisor: f32,
        (dx, loss): (Option<Slice<'_>>, Slice<'_>),
    ) -> Result<()> {
        let rows = self.checked(x, labels, loss)?;
        let arguments = Arguments::new().reads(x).reads(labels);
        self.differentiate(queue, ("class_squares", rows, arguments), x, divisor, (dx, loss))
    }

    fn differentiate(
        &self,
        queue: &Queue,
        (stem, rows, arguments): (&str, u64, Arguments),
        x: Slice<'_>,
        divisor: f32,
        (dx, loss): (Option<Slice<'_>>, Slice<'_>),
    ) -> Result<()> {
        holds("the losses", loss, rows, 4)?;
        if let Some(dx) = dx {
            holds("the gradient of the logits", dx, x.elements(self.dtype.size())?, self.dtype.size())?;
        }
        if rows > 0 {
            let arguments = arguments.with(rows).with(self.classes as u64).with(self.first as u64);
            let arguments = writes_if(arguments.with(self.total as u64).with(divisor), dx).writes(loss);
            self.launch(queue, stem, rows, arguments)?;
        }
        Ok(())
    }

    /// A number for each row (i64) whose maximum over ranks identifies the class with the largest logit, the first of equal logits.
    ///
    /// # Errors
    /// A buffer of the wrong length.
    pub fn best(&self, queue: &Queue, x: Slice<'_>, best: Slice<'_>) -> Result<()> {
        let rows = self.rows(x)?;
        holds("the best classes", best, rows, 8)?;
        if rows > 0 {
            let arguments = Arguments::new().reads(x).with(rows).with(self.classes as u64);
            self.launch(queue, "class_best", rows, arguments.with(self.first as u64).writes(best))?;
        }
        Ok(())
    }
}

/// Writes, for each row, 1 (u32) if the maximum over ranks of [`ClassPart::best`] is of its label's class, else 0.
///
/// # Errors
/// A buffer of the wrong length.
pub fn class_hits(queue: &Queue, best: Slice<'_>, labels: Slice<'_>, hits: Slice<'_>) -> Result<()> {
    let rows = labels.elements(4)?;
    holds("the best classes", best, rows, 8)?;
    holds("the hits", hits, rows, 4)?;
    if rows > 0 {
        let arguments = Arguments::new().reads(best).reads(labels).with(rows).writes(hits);
        run(
            queue,
            Kernel::plain(Family::SplitLoss, "class_hits"),
            [blocks(queue, rows, 1), 1, 1],
            arguments,
        )?;
    }
    Ok(())
}
