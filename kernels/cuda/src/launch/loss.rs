//! Losses, their gradients and accuracy.

use super::{blocks, holds, run, trained, writes_if};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;

/// Softmax cross-entropy of every sample (f32), and the gradient of the losses' sum over `divisor` by the logits, `[N, C]`. The rows of
/// logits and gradient may lie further apart than their `classes`, C: then zeros are written between rows of the gradient.
///
/// # Errors
/// A buffer of the wrong length.
pub fn cross_entropy(
    queue: &Queue,
    dtype: DType,
    (x, classes): (Slice<'_>, usize),
    labels: Slice<'_>,
    divisor: f32,
    dx: Option<Slice<'_>>,
    loss: Slice<'_>,
) -> Result<()> {
    by_sample(queue, "cross_entropy", dtype, (x, classes, labels), divisor, (dx, loss))
}

/// The mean squared distance of every sample (f32) from the one-hot label, and the gradient as in [`cross_entropy`].
///
/// # Errors
/// A buffer of the wrong length.
pub fn mse(
    queue: &Queue,
    dtype: DType,
    (x, classes): (Slice<'_>, usize),
    labels: Slice<'_>,
    divisor: f32,
    dx: Option<Slice<'_>>,
    loss: Slice<'_>,
) -> Result<()> {
    by_sample(queue, "mse", dtype, (x, classes, labels), divisor, (dx, loss))
}

/// Writes, for each sample, 1 (u32) if its largest logit (the first of equal ones) is its label's, else 0.
///
/// # Errors
/// A buffer of the wrong length.
pub fn correct(
    queue: &Queue,
    dtype: DType,
    (x, classes): (Slice<'_>, usize),
    labels: Slice<'_>,
    hits: Slice<'_>,
) -> Result<()> {
    trained(dtype)?;
    let (n, all) = (labels.elements(4)?, x.elements(dtype.size())?);
    holds("the hits", hits, n, 4)?;
    let stride = stride(n, all, classes)?;
    if stride > 0 {
        let arguments = Arguments::new().reads(x).reads(labels).with(n).with(classes as u64).with(stride);
        let kernel = Kernel::typed(Family::Loss, "correct", dtype);
        run(queue, kernel, [blocks(queue, n * 32, 1), 1, 1], arguments.writes(hits))?;
    }
    Ok(())
}

/// The distance of rows of logits in elements; 0 if there are no samples.
fn stride(samples: u64, all: u64, classes: usize) -> Result<u64> {
    match (samples, all) {
        (0, 0) => Ok(0),
        (n, all) if n > 0 && classes > 0 && all.is_multiple_of(n) && all / n >= classes as u64 => Ok(all / n),
        (n, all) => Err(Error::Argument(format!("{all} logits are no {n} rows of {classes} classes"))),
    }
}

fn by_sample(
    queue: &Queue,
    stem: &str,
    dtype: DType,
    (x, classes, labels): (Slice<'_>, usize, Slice<'_>),
    divisor: f32,
    (dx, loss): (Option<Slice<'_>>, Slice<'_>),
) -> Result<()> {
    trained(dtype)?;
    let (n, all) = (labels.elements(4)?, x.elements(dtype.size())?);
    holds("the losses", loss, n, 4)?;
    if let Some(dx) = dx {
        holds("the gradient of the logits", dx, all, dtype.size())?;
    }
    let stride = stride(n, all, classes)?;
    if stride == 0 {
        return Ok(());
    }
    let arguments = Arguments::new().reads(x).reads(labels).with(n).with(classes as u64).with(stride);
    let arguments = writes_if(arguments.with(divisor), dx).writes(loss);
    let grid = [blocks(queue, n * 256, 1), 1, 1];
    run(queue, Kernel::typed(Family::Loss, stem, dtype), grid, arguments)
}

/// The mean of f32 values, summed in a fixed order; 0 for no values.
///
/// # Errors
/// A buffer of the wrong length.
pub fn mean(queue: &Queue, x: Slice<'_>, out: Slice<'_>) -> Result<()> {
    holds("a mean", out, 1, 4)?;
    let arguments = Arguments::new().reads(x).with(x.elements(4)?).writes(out);
    run(queue, Kernel::plain(Family::Loss, "mean_f32"), [1, 1, 1], arguments)
}
