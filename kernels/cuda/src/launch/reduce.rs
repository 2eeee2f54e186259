//! The reductions that a schedule's steps need.

use super::{blocks, holds, run};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::{DType, ReduceOp};

/// The stem of the names of an operator's kernels; an average uses the sum's, and is divided at the end.
pub(super) fn stem(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => "sum",
        ReduceOp::Prod => "prod",
        ReduceOp::Min => "min",
        ReduceOp::Max => "max",
    }
}

/// `into[i] = into[i] (+) from[i]`, bitwise equal to [`allfold_kernels::reduce`].
///
/// # Errors
/// [`Error::Argument`] if the parts differ in length or hold no whole elements.
pub fn reduce(queue: &Queue, dtype: DType, op: ReduceOp, into: Slice<'_>, from: Slice<'_>) -> Result<()> {
    let n = into.elements(dtype.size())?;
    holds("the second operand of a reduction", from, n, dtype.size())?;
    if n == 0 {
        return Ok(());
    }
    let kernel = Kernel::typed(Family::Reduce, &format!("reduce_{}", stem(op)), dtype);
    let arguments = Arguments::new().updates(into).reads(from).with(n);
    run(queue, kernel, [blocks(queue, n, 16 / dtype.size() as u64), 1, 1], arguments)
}

/// `into[i] = into[i] / parts`, bitwise equal to [`allfold_kernels::divide`].
///
/// # Errors
/// [`Error::Argument`] if `parts` is 0.
pub fn divide(queue: &Queue, dtype: DType, into: Slice<'_>, parts: u32) -> Result<()> {
    let n = into.elements(dtype.size())?;
    if parts == 0 {
        return Err(Error::Argument("an average needs 1 part or more".into()));
    }
    if n == 0 {
        return Ok(());
    }
    let kernel = Kernel::typed(Family::Reduce, "divide", dtype);
    let arguments = Arguments::new().updates(into).with(parts).with(n);
    run(queue, kernel, [blocks(queue, n, 16 / dtype.size() as u64), 1, 1], arguments)
}
