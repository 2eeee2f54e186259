//! The launch of dropout.

use super::{Moved, blocks, holds, run, trained};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;
use allfold_kernels::nn::DropoutStream;

/// Copies `x` (samples of `width` values) to `y`, sets a share of the values to 0 and scales the others, by the draws of
/// [`allfold_kernels::nn::DropoutKernel`]. `stream` holds the words (u32) of a [`DropoutStream`]; the kernel takes the layer from `layer`.
/// Applied to gradients, the same call is the backward pass.
///
/// # Errors
/// A buffer of the wrong length; a share that is not at least 0 and less than 1.
pub fn dropout(
    queue: &Queue,
    dtype: DType,
    (x, y): (Slice<'_>, Slice<'_>),
    (stream, layer): (Slice<'_>, u32),
    (width, share): (usize, f64),
) -> Result<Moved> {
    trained(dtype)?;
    let n = x.elements(dtype.size())?;
    holds("the result of a dropout", y, n, dtype.size())?;
    holds("a stream of draws", stream, DropoutStream::WORDS as u64, 4)?;
    if !(0.0..1.0).contains(&share) || width == 0 || width >= 1 << 34 || !n.is_multiple_of(width as u64) {
        return Err(Error::Argument(format!(
            "dropout takes a probability of at least 0 and less than 1 and whole samples, not {share} over {n} values in samples of \
             {width}"
        )));
    }
    if n > 0 {
        let (bound, scale) = ((share * 4_294_967_296.0) as u32, (1.0 / (1.0 - share)) as f32);
        let arguments = Arguments::new().reads(x).writes(y).with(n).with(width as u64);
        let arguments = arguments.reads(stream).with(layer).with(bound).with(scale);
        let kernel = Kernel::typed(Family::Dropout, "dropout", dtype);
        run(queue, kernel, [blocks(queue, n, 4), 1, 1], arguments)?;
    }
    Ok(2 * x.len() as u64)
}
