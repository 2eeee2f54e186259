//! Softmax cross-entropy.

use super::{Moved, blocks, holds, run, trained};
use crate::DType;
use crate::cuda::{Arguments, Error, Family, Kernel, Queue, Result, Slice};

/// The loss of every sample (f32), and the gradient of their sum over `divisor` by the logits `[N, C]`.
///
/// # Errors
/// A length that does not fit.
pub fn cross_entropy(
    queue: &Queue,
    dtype: DType,
    x: Slice<'_>,
    labels: Slice<'_>,
    divisor: f32,
    dx: Option<Slice<'_>>,
    loss: Slice<'_>,
) -> Result<Moved> {
    trained(dtype)?;
    let (n, all) = (labels.elements(4)?, x.elements(dtype.size())?);
    holds("the losses", loss, n, 4)?;
    if let Some(dx) = dx {
        holds("the gradient of the logits", dx, all, dtype.size())?;
    }
    if n == 0 || !all.is_multiple_of(n) || all == 0 {
        return match all {
            0 if n == 0 => Ok(0),
            _ => Err(Error::Argument(format!("{all} logits for {n} samples"))),
        };
    }
    let arguments =
        Arguments::new().with(x.address()).with(labels.address()).with(n).with(all / n).with(divisor);
    let arguments = arguments.with(dx.map_or(0, |dx| dx.address())).with(loss.address());
    let grid = [blocks(queue, n * 256, 1), 1, 1];
    run(queue, Kernel::typed(Family::Loss, "cross_entropy", dtype), grid, arguments)?;
    Ok(x.len() as u64 * if dx.is_some() { 2 } else { 1 })
}

/// The mean of f32 values, in a fixed order; 0 of none.
///
/// # Errors
/// A length that does not fit.
pub fn mean(queue: &Queue, x: Slice<'_>, out: Slice<'_>) -> Result<Moved> {
    holds("a mean", out, 1, 4)?;
    let arguments = Arguments::new().with(x.address()).with(x.elements(4)?).with(out.address());
    run(queue, Kernel::plain(Family::Loss, "mean_f32"), [1, 1, 1], arguments)?;
    Ok(x.len() as u64)
}
