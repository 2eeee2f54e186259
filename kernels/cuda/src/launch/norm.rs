//! The norm of gradients, and the factor that clips them.

use super::{holds, run};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};

/// Writes the sums of squares of f32 values in as many parts as `parts` has elements (f64, at least 1), in a fixed order.
///
/// # Errors
/// A buffer of the wrong length.
pub fn squares(queue: &Queue, x: Slice<'_>, parts: Slice<'_>) -> Result<()> {
    let (n, slices) = (x.elements(4)?, parts.elements(8)?);
    let slices = u32::try_from(slices).ok().filter(|slices| (1..=65_535).contains(slices));
    let slices =
        slices.ok_or_else(|| Error::Argument("the number of partial sums must be 1 to 65535".into()))?;
    let arguments = Arguments::new().reads(x).with(n).writes(parts);
    run(queue, Kernel::plain(Family::Norm, "squares"), [slices, 1, 1], arguments)
}

/// Writes to `out` (two f32) the norm of all values of which `parts` holds the [`squares`], and the factor that makes it at most `limit`:
/// the factor of a step, [`super::StepReads`]. The factor of a NaN norm is NaN.
///
/// # Errors
/// A buffer of the wrong length.
pub fn clip(queue: &Queue, parts: Slice<'_>, limit: f64, out: Slice<'_>) -> Result<()> {
    holds("a norm and its factor", out, 2, 4)?;
    let arguments = Arguments::new().reads(parts).with(parts.elements(8)? as u32).with(limit).writes(out);
    run(queue, Kernel::plain(Family::Norm, "clip"), [1, 1, 1], arguments)
}
