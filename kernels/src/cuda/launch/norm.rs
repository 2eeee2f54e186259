//! The norm of gradients.

use super::{Moved, blocks, holds, run};
use crate::cuda::{Arguments, Error, Family, Kernel, Queue, Result, Slice};

/// Sums of squares of f32 values into as many parts as `parts` has elements (f64, 1 or more), in a fixed order.
///
/// # Errors
/// A length that does not fit.
pub fn squares(queue: &Queue, x: Slice<'_>, parts: Slice<'_>) -> Result<Moved> {
    let (n, slices) = (x.elements(4)?, parts.elements(8)?);
    let slices = u32::try_from(slices).ok().filter(|slices| (1..=65_535).contains(slices));
    let slices = slices.ok_or_else(|| Error::Argument("sums in 1 to 65535 parts".into()))?;
    let arguments = Arguments::new().reads(x).with(n).writes(parts);
    run(queue, Kernel::plain(Family::Norm, "squares"), [slices, 1, 1], arguments)?;
    Ok(x.len() as u64)
}

/// Bounds the norm of `x` by `limit`, given the [`squares`] of all that is to be clipped by the same norm; `norm` (f32)
/// receives what it was. NaN spoils `x`.
///
/// # Errors
/// A length that does not fit.
pub fn clip(queue: &Queue, x: Slice<'_>, parts: Slice<'_>, limit: f64, norm: Slice<'_>) -> Result<Moved> {
    holds("a norm", norm, 1, 4)?;
    let (n, slices) = (x.elements(4)?, parts.elements(8)? as u32);
    let arguments = Arguments::new().writes(x).with(n).reads(parts).with(slices);
    let arguments = arguments.with(limit).writes(norm);
    run(queue, Kernel::plain(Family::Norm, "clip"), [blocks(queue, n, 4), 1, 1], arguments)?;
    Ok(2 * x.len() as u64)
}
