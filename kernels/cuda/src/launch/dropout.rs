//! The launch of dropout.

use super::{blocks, holds, run, trained};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;
use allfold_kernels::nn::DropoutStream;
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

/// The elements of a sample that a buffer has, and the share of them that is set to 0.
#[derive(Clone, Debug, PartialEq)]
pub struct DropoutLaunch<'r> {
    /// One run of elements of a whole sample, or two.
    pub runs: &'r [Range<usize>],
    /// The share, at least 0 and less than 1.
    pub share: f64,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Runs {
    width: u64,
    run: u64,
    first: u64,
    second: u64,
}

impl DropoutLaunch<'_> {
    fn runs(&self) -> Result<Runs> {
        let runs = match self.runs {
            [run] => Some((run.clone(), run.end..run.end)),
            [front, back] => Some((front.clone(), back.clone())),
            _ => None,
        };
        let fits = runs.filter(|(front, back)| front.end <= back.start && back.end < 1 << 34);
        let Some((front, back)) = fits.filter(|_| (0.0..1.0).contains(&self.share)) else {
            return Err(Error::Argument(format!(
                "dropout takes a share of at least 0 and less than 1 and one or two runs of elements, not {} and {:?}",
                self.share, self.runs
            )));
        };
        let (run, rest) = (front.len() as u64, back.len() as u64);
        Ok(Runs { width: run + rest, run, first: front.start as u64, second: back.start as u64 })
    }
}

/// Copies `x`, the same elements of each of several samples, to `y`, sets a share of the values to 0 and scales the others, by the draws
/// of [`allfold_kernels::nn::DropoutKernel`]. `stream` holds the words (u32) of a [`DropoutStream`]; `layer` replaces the stream's layer.
/// Applied to gradients, the same call is the backward pass.
///
/// # Errors
/// A buffer of the wrong length; runs or a share that the kernel does not support.
pub fn dropout(
    queue: &Queue,
    dtype: DType,
    (x, y): (Slice<'_>, Slice<'_>),
    (stream, layer): (Slice<'_>, u32),
    s: &DropoutLaunch<'_>,
) -> Result<()> {
    trained(dtype)?;
    let n = x.elements(dtype.size())?;
    holds("the result of a dropout", y, n, dtype.size())?;
    holds("a stream of draws", stream, DropoutStream::WORDS as u64, 4)?;
    let runs = s.runs()?;
    if runs.width == 0 || !n.is_multiple_of(runs.width) {
        return Err(Error::Argument(format!("{n} values are no samples of {} values", runs.width)));
    }
    if n > 0 {
        let (bound, scale) = ((s.share * 4_294_967_296.0) as u32, (1.0 / (1.0 - s.share)) as f32);
        let arguments = Arguments::new().reads(x).writes(y).with(n).with(runs);
        let arguments = arguments.reads(stream).with(layer).with(bound).with(scale);
        let kernel = Kernel::typed(Family::Dropout, "dropout", dtype);
        run(queue, kernel, [blocks(queue, n, 4), 1, 1], arguments)?;
    }
    Ok(())
}
