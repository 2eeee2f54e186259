//! Activations and their gradients, residual sums and biases: element by element, but the gradient of a bias is a sum.

use super::layer_norm::column_sums;
use super::{blocks, holds, run, trained};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// The rectified linear unit, max(x, 0).
    Relu,
    /// x times the standard normal distribution function at x, in the tanh approximation.
    Gelu,
}

impl Function {
    fn stem(self) -> &'static str {
        match self {
            Function::Relu => "relu",
            Function::Gelu => "gelu",
        }
    }
}

/// Applies an activation function: `y = f(x)`.
///
/// # Errors
/// A buffer of the wrong length.
pub fn activate(queue: &Queue, f: Function, dtype: DType, x: Slice<'_>, y: Slice<'_>) -> Result<()> {
    trained(dtype)?;
    let n = x.elements(dtype.size())?;
    holds("the result of an activation", y, n, dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().reads(x).writes(y).with(n);
        let kernel = Kernel::typed(Family::Activation, f.stem(), dtype);
        run(queue, kernel, [blocks(queue, n, 4), 1, 1], arguments)?;
    }
    Ok(())
}

/// The gradient of an activation function: `dx = dy f'(x)`.
///
/// # Errors
/// A buffer of the wrong length.
pub fn activate_back(
    queue: &Queue,
    f: Function,
    dtype: DType,
    (x, dy): (Slice<'_>, Slice<'_>),
    dx: Slice<'_>,
) -> Result<()> {
    trained(dtype)?;
    let n = x.elements(dtype.size())?;
    holds("the gradient of an activation", dy, n, dtype.size())?;
    holds("the gradient of its input", dx, n, dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().reads(x).reads(dy).writes(dx).with(n);
        let kernel = Kernel::typed(Family::Activation, &format!("{}_back", f.stem()), dtype);
        run(queue, kernel, [blocks(queue, n, 4), 1, 1], arguments)?;
    }
    Ok(())
}

/// `y = a + b`, rounded once; `y` may be the same buffer as `a` or `b`.
///
/// # Errors
/// A buffer of the wrong length.
pub fn add(queue: &Queue, dtype: DType, (a, b): (Slice<'_>, Slice<'_>), y: Slice<'_>) -> Result<()> {
    trained(dtype)?;
    let n = y.elements(dtype.size())?;
    holds("the first operand of a sum", a, n, dtype.size())?;
    holds("the second operand of a sum", b, n, dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().reads(a).reads(b).writes(y).with(n);
        let grid = [blocks(queue, n, 16 / dtype.size() as u64), 1, 1];
        run(queue, Kernel::typed(Family::Activation, "add", dtype), grid, arguments)?;
    }
    Ok(())
}

/// `y = a + b`, where `a` and `y` are f32 and `b` is of type `dtype`; `y` may be the same buffer as `a`.
///
/// # Errors
/// A buffer of the wrong length.
pub fn add_wide(queue: &Queue, dtype: DType, (a, b): (Slice<'_>, Slice<'_>), y: Slice<'_>) -> Result<()> {
    trained(dtype)?;
    let n = y.elements(4)?;
    holds("the first operand of a sum", a, n, 4)?;
    holds("the second operand of a sum", b, n, dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().reads(a).reads(b).writes(y).with(n);
        let kernel = Kernel::typed(Family::Activation, "add_wide", dtype);
        run(queue, kernel, [blocks(queue, n, 8), 1, 1], arguments)?;
    }
    Ok(())
}

/// The number of samples when `n` values have the shape `[samples, C, plane]`; `plane` is 1 for the rows of a matrix.
fn rows(n: u64, columns: u64, plane: usize) -> Result<u64> {
    let row = columns * plane as u64;
    match n {
        0 => Ok(0),
        _ if row == 0 || !n.is_multiple_of(row) => {
            Err(Error::Argument(format!("{n} values do not divide into rows of {columns} x {plane}")))
        }
        _ => Ok(n / row),
    }
}

/// `y[.., c, ..] += b[c]`, with `b` of f32; a channel has `plane` consecutive values: 1 for matrices.
///
/// # Errors
/// A buffer of the wrong length.
pub fn bias(queue: &Queue, dtype: DType, y: Slice<'_>, b: Slice<'_>, plane: usize) -> Result<()> {
    trained(dtype)?;
    let (n, columns) = (y.elements(dtype.size())?, b.elements(4)?);
    if rows(n, columns, plane)? == 0 {
        return Ok(());
    }
    let arguments = Arguments::new().updates(y).reads(b).with(columns);
    let arguments = arguments.with(plane as u64).with(n);
    run(queue, Kernel::typed(Family::Activation, "bias", dtype), [blocks(queue, n, 4), 1, 1], arguments)
}

/// Replaces `db` (f32) by the gradient of [`bias`].
///
/// # Errors
/// A buffer of the wrong length.
pub fn bias_back(queue: &Queue, dtype: DType, dy: Slice<'_>, db: Slice<'_>, plane: usize) -> Result<()> {
    trained(dtype)?;
    let (n, columns) = (dy.elements(dtype.size())?, db.elements(4)?);
    let rows = rows(n, columns, plane)?;
    if columns == 0 {
        return Ok(());
    }
    let wide = if plane == 1 { columns.div_ceil(32) } else { columns } as u32;
    let slices = blocks(queue, n, 8).div_ceil(wide).clamp(1, 64);
    let parts = queue.memory(slices as usize * columns as usize * 4)?;
    let arguments = Arguments::new().reads(dy).with(rows).with(columns);
    let (stem, arguments) = match plane {
        1 => ("bias_back", arguments),
        plane => ("bias_planes", arguments.with(plane as u64)),
    };
    let kernel = Kernel::typed(Family::Activation, stem, dtype);
    run(queue, kernel, [wide, slices, 1], arguments.writes(parts.all()))?;
    column_sums(queue, (parts.all(), slices), columns, db)
}
