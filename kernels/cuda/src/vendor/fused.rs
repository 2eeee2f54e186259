//! Products with an epilogue: in one call of cuBLASLt, or by several kernels.

use super::blas::Blas;
use super::epilogue::Epilogue;
use crate::launch::{self, DeviceMatrix, Function, ProductOutput};
use crate::{Error, Queue, Result};
use allfold_kernels::DType;

/// `c = a b + keep c` with an epilogue: in one pass where cuBLASLt computes it, else by kernels of their own before or after it.
///
/// # Errors
/// Operands whose shapes do not match; a library's error.
pub fn product(
    queue: &Queue,
    dtype: DType,
    operands: (DeviceMatrix<'_>, DeviceMatrix<'_>),
    c: ProductOutput<'_>,
    epilogue: Epilogue<'_>,
) -> Result<()> {
    let (a, b) = operands;
    [a, b].iter().try_for_each(|matrix| matrix.check(dtype))?;
    c.check(dtype, (a.rows, b.columns))?;
    let values = (a.rows * b.columns) as u64;
    epilogue
        .before()
        .map_or(Ok(()), |x| launch::holds("what GELU is computed of", x, values, dtype.size()))?;
    if let Epilogue::RowSums(sums) = epilogue {
        launch::holds("the sums of rows", sums, a.rows as u64, 4)?;
        if !a.transposed || a.apart > 0 {
            return Err(Error::Argument("rows are summed of a matrix that is stored transposed".into()));
        }
    }
    if a.columns == b.rows && values * a.columns as u64 > 0 && epilogue.may_fuse(dtype, operands, c) {
        let fused = match Blas::of(queue)? {
            Some(blas) => blas.fused(queue, dtype, operands, c, epilogue)?,
            None => counted(queue, operands, c, epilogue),
        };
        if fused {
            return Ok(());
        }
    }
    match epilogue {
        Epilogue::None => super::matmul(queue, dtype, operands, c, None),
        Epilogue::Bias(bias) => super::matmul(queue, dtype, operands, c, Some(bias)),
        Epilogue::Gelu { bias, before } => {
            super::matmul(queue, dtype, operands, ProductOutput::new(before, dtype), bias)?;
            launch::activate(queue, Function::Gelu, dtype, before, c.data)
        }
        Epilogue::GeluBack { before } => {
            let dy = queue.memory(c.data.len())?;
            super::matmul(queue, dtype, operands, ProductOutput::new(dy.all(), dtype), None)?;
            launch::activate_back(queue, Function::Gelu, dtype, (before, dy.all()), c.data)
        }
        Epilogue::RowSums(sums) => {
            launch::bias_back(queue, dtype, a.data, sums, 1)?;
            super::matmul(queue, dtype, operands, c, None)
        }
    }
}

/// Counts the call on a machine that only counts; `false` on others.
fn counted(
    queue: &Queue,
    (a, b): (DeviceMatrix<'_>, DeviceMatrix<'_>),
    c: ProductOutput<'_>,
    epilogue: Epilogue<'_>,
) -> bool {
    let writes_before = matches!(epilogue, Epilogue::Gelu { .. });
    let writes_bias = matches!(epilogue, Epilogue::RowSums(_));
    let more = [(epilogue.before(), writes_before), (epilogue.bias(), writes_bias)];
    let more = more.into_iter().filter_map(|(part, write)| Some((part?, write)));
    let accesses = [(a.data, false), (b.data, false), (c.data, true)].into_iter().chain(more);
    let accesses: Vec<_> = accesses.map(|(part, write)| part.access(write)).collect();
    queue.machine().counted_call("cublasLtMatmul", &accesses)
}
