//! The norm of gradients, and clipping by it.

use super::{Moved, blocks, holds, run};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};

/// Writes the sums of squares of f32 values in as many parts as `parts` has elements (f64, at least 1), in a fixed order.
///
/// # Errors
/// A buffer of the wrong length.
pub fn squares(queue: &Queue, x: Slice<'_>, parts: Slice<'_>) -> Result<Moved> {
    let (n, slices) = (x.elements(4)?, parts.elements(8)?);
    let slices = u32::try_from(slices).ok().filter(|slices| (1..=65_535).contains(slices));
    let slices =
        slices.ok_or_else(|| Error::Argument("the number of partial sums must be 1 to 65535".into()))?;
    let arguments = Arguments::new().reads(x).with(n).writes(parts);
    run(queue, Kernel::plain(Family::Norm, "squares"), [slices, 1, 1], arguments)?;
    Ok(x.len() as u64)
}

/// Scales `x` so that the common norm is at most `limit`; `parts` holds the [`squares`] of all values under that norm. `norm` (f32)
/// receives the norm before clipping. A NaN norm makes all of `x` NaN.
///
/// # Errors
/// A buffer of the wrong length.
pub fn clip(queue: &Queue, x: Slice<'_>, parts: Slice<'_>, limit: f64, norm: Slice<'_>) -> Result<Moved> {
    holds("a norm", norm, 1, 4)?;
    let (n, slices) = (x.elements(4)?, parts.elements(8)? as u32);
    let arguments = Arguments::new().updates(x).with(n).reads(parts).with(slices);
    let arguments = arguments.with(limit).writes(norm);
    run(queue, Kernel::plain(Family::Norm, "clip"), [blocks(queue, n, 4), 1, 1], arguments)?;
    Ok(2 * x.len() as u64)
}
