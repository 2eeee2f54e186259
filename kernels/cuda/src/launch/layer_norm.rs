//! Layer normalisation over rows.

use super::{Moved, blocks, holds, run, trained};
use crate::{Arguments, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;

/// The shape of a layer normalisation: rows of C columns. Weights and biases are `[C]`, means and r `[rows]`, all of f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormLaunch {
    /// The element type of `x` and `y`.
    pub dtype: DType,
    /// The number of rows.
    pub rows: usize,
    /// The number of columns, C; at least 1.
    pub columns: usize,
    /// The constant that is added to the variance.
    pub eps: f32,
}

impl LayerNormLaunch {
    fn checks(&self, rows: &[Slice<'_>], columns: &[Slice<'_>], saved: &[Slice<'_>]) -> Result<()> {
        trained(self.dtype)?;
        let (r, c) = (self.rows as u64, self.columns as u64);
        rows.iter().try_for_each(|x| holds("a layer norm's rows", *x, r * c, self.dtype.size()))?;
        columns.iter().try_for_each(|x| holds("a value per column", *x, c, 4))?;
        saved.iter().try_for_each(|x| holds("a value per row", *x, r, 4))
    }

    fn grid(&self, queue: &Queue) -> [u32; 3] {
        [blocks(queue, self.rows as u64 * 256, 1), 1, 1]
    }
}

/// `y = (x - mean) r w + b`; `means` and `rs` are stored for the backward pass.
///
/// # Errors
/// A buffer of the wrong length.
pub fn layer_norm(
    queue: &Queue,
    s: &LayerNormLaunch,
    x: Slice<'_>,
    (w, b): (Slice<'_>, Slice<'_>),
    (means, rs): (Slice<'_>, Slice<'_>),
    y: Slice<'_>,
) -> Result<Moved> {
    s.checks(&[x, y], &[w, b], &[means, rs])?;
    if x.is_empty() {
        return Ok(0);
    }
    let arguments = Arguments::new().reads(x).with(s.rows as u64).with(s.columns as u64);
    let arguments = arguments.reads(w).reads(b).with(s.eps);
    let arguments = arguments.writes(means).writes(rs).writes(y);
    run(queue, Kernel::typed(Family::LayerNorm, "layer_norm", s.dtype), s.grid(queue), arguments)?;
    Ok(2 * x.len() as u64)
}

/// Replaces the gradients of input, weight and bias.
///
/// # Errors
/// A buffer of the wrong length.
#[allow(clippy::too_many_arguments, reason = "one buffer each, named as in the formula")]
pub fn layer_norm_back(
    queue: &Queue,
    s: &LayerNormLaunch,
    (x, dy): (Slice<'_>, Slice<'_>),
    w: Slice<'_>,
    (means, rs): (Slice<'_>, Slice<'_>),
    dx: Slice<'_>,
    dwb: Slice<'_>,
) -> Result<Moved> {
    s.checks(&[x, dy, dx], &[w], &[means, rs])?;
    holds("the gradients of weight, then bias", dwb, 2 * s.columns as u64, 4)?;
    let head = Arguments::new().reads(x).reads(dy).with(s.rows as u64).with(s.columns as u64);
    if !x.is_empty() {
        let arguments = head.clone().reads(w).reads(means).reads(rs).writes(dx);
        run(queue, Kernel::typed(Family::LayerNorm, "layer_norm_input", s.dtype), s.grid(queue), arguments)?;
    }
    if s.columns == 0 {
        return Ok(0);
    }
    let columns = (s.columns as u64).div_ceil(32) as u32;
    let slices = blocks(queue, s.rows as u64 * s.columns as u64, 8).div_ceil(columns).clamp(1, 64);
    let parts = queue.memory(slices as usize * 2 * s.columns * 4)?;
    let arguments = head.reads(means).reads(rs).writes(parts.all());
    run(
        queue,
        Kernel::typed(Family::LayerNorm, "layer_norm_params", s.dtype),
        [columns, slices, 1],
        arguments,
    )?;
    let n = 2 * s.columns as u64;
    let arguments = Arguments::new().reads(parts.all()).with(slices).with(n).writes(dwb);
    run(queue, Kernel::plain(Family::LayerNorm, "column_sums"), [blocks(queue, n, 1), 1, 1], arguments)?;
    Ok(5 * x.len() as u64)
}
