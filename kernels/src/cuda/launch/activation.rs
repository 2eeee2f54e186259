//! What is done to each element alone.

use super::{Moved, blocks, holds, run, trained};
use crate::DType;
use crate::cuda::{Arguments, Error, Family, Kernel, Queue, Result, Slice};

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// max(x, 0).
    Relu,
    /// x times the normal distribution's share below x, in the tanh form.
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

/// `y = f(x)`.
///
/// # Errors
/// A length that does not fit.
pub fn activate(queue: &Queue, f: Function, dtype: DType, x: Slice<'_>, y: Slice<'_>) -> Result<Moved> {
    trained(dtype)?;
    let n = x.elements(dtype.size())?;
    holds("the result of an activation", y, n, dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().with(x.address()).with(y.address()).with(n);
        let kernel = Kernel::typed(Family::Activation, f.stem(), dtype);
        run(queue, kernel, [blocks(queue, n, 4), 1, 1], arguments)?;
    }
    Ok(2 * x.len() as u64)
}

/// `dx = dy f'(x)`.
///
/// # Errors
/// A length that does not fit.
pub fn activate_back(
    queue: &Queue,
    f: Function,
    dtype: DType,
    (x, dy): (Slice<'_>, Slice<'_>),
    dx: Slice<'_>,
) -> Result<Moved> {
    trained(dtype)?;
    let n = x.elements(dtype.size())?;
    holds("the gradient of an activation", dy, n, dtype.size())?;
    holds("the gradient of its input", dx, n, dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().with(x.address()).with(dy.address()).with(dx.address()).with(n);
        let kernel = Kernel::typed(Family::Activation, &format!("{}_back", f.stem()), dtype);
        run(queue, kernel, [blocks(queue, n, 4), 1, 1], arguments)?;
    }
    Ok(3 * x.len() as u64)
}

/// `into = into + from`.
///
/// # Errors
/// A length that does not fit.
pub fn add(queue: &Queue, dtype: DType, into: Slice<'_>, from: Slice<'_>) -> Result<Moved> {
    trained(dtype)?;
    let n = into.elements(dtype.size())?;
    holds("the second operand of a sum", from, n, dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().with(into.address()).with(from.address()).with(n);
        let grid = [blocks(queue, n, 16 / dtype.size() as u64), 1, 1];
        run(queue, Kernel::typed(Family::Activation, "add", dtype), grid, arguments)?;
    }
    Ok(3 * into.len() as u64)
}

/// `y[.., c] += b[c]`, `b` of f32.
///
/// # Errors
/// A length that does not fit.
pub fn bias(queue: &Queue, dtype: DType, y: Slice<'_>, b: Slice<'_>) -> Result<Moved> {
    trained(dtype)?;
    let (n, columns) = (y.elements(dtype.size())?, b.elements(4)?);
    if n == 0 {
        return Ok(0);
    }
    if columns == 0 || !n.is_multiple_of(columns) {
        return Err(Error::Argument(format!("{n} values are no rows of {columns}")));
    }
    let arguments = Arguments::new().with(y.address()).with(b.address()).with(columns).with(n);
    run(queue, Kernel::typed(Family::Activation, "bias", dtype), [blocks(queue, n, 4), 1, 1], arguments)?;
    Ok(2 * y.len() as u64)
}
