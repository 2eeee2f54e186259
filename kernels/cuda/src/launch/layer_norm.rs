//! Layer normalisation over rows.

use super::{blocks, holds, reads_if, run, trained, writes_if};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;

/// The most columns of which a block keeps sums, `COLUMNS` of the kernel.
const COLUMNS: usize = 2048;

/// The shape of a layer normalisation: rows of C columns. Weights and biases are `[C]`, means and r `[rows]`, all of f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormLaunch {
    /// The element type of `x` and `dx`: f32, or that of `y`.
    pub dtype: DType,
    /// The element type of `y` and `dy`.
    pub output: DType,
    /// The number of rows.
    pub rows: usize,
    /// The number of columns, C; at least 1.
    pub columns: usize,
    /// The constant that is added to the variance.
    pub eps: f32,
}

impl LayerNormLaunch {
    fn checks(&self, rows: &[(Slice<'_>, DType)], columns: &[Slice<'_>], saved: &[Slice<'_>]) -> Result<()> {
        trained(self.output)?;
        if self.dtype != self.output && self.dtype != DType::F32 {
            let (dtype, output) = (self.dtype, self.output);
            return Err(Error::Argument(format!(
                "a layer norm from {dtype} to {output}; the input must be f32"
            )));
        }
        let (r, c) = (self.rows as u64, self.columns as u64);
        rows.iter().try_for_each(|(x, dtype)| holds("a layer norm's rows", *x, r * c, dtype.size()))?;
        columns.iter().try_for_each(|x| holds("a value per column", *x, c, 4))?;
        saved.iter().try_for_each(|x| holds("a value per row", *x, r, 4))
    }

    fn kernel(&self, stem: &str) -> Kernel {
        let wide = if self.dtype == self.output { "" } else { "_wide" };
        Kernel::typed(Family::LayerNorm, &format!("{stem}{wide}"), self.output)
    }

    fn grid(&self, queue: &Queue) -> [u32; 3] {
        [blocks(queue, self.rows as u64 * 256, 1), 1, 1]
    }
}

/// `y = (x - mean) r w + b`; `means` and `rs` are stored for the backward pass. With `sum`, a summand of the type of `y` and the memory of
/// the sum, x is the sum, which is stored.
///
/// # Errors
/// A buffer of the wrong length.
pub fn layer_norm(
    queue: &Queue,
    s: &LayerNormLaunch,
    (x, sum): (Slice<'_>, Option<(Slice<'_>, Slice<'_>)>),
    (w, b): (Slice<'_>, Slice<'_>),
    (means, rs): (Slice<'_>, Slice<'_>),
    y: Slice<'_>,
) -> Result<()> {
    let (other, total) = sum.unwrap_or((y, x));
    let tensors = [(x, s.dtype), (y, s.output), (other, s.output), (total, s.dtype)];
    s.checks(&tensors, &[w, b], &[means, rs])?;
    if x.is_empty() {
        return Ok(());
    }
    let arguments = reads_if(Arguments::new().reads(x), sum.map(|(other, _)| other));
    let arguments = writes_if(arguments, sum.map(|(_, total)| total));
    let arguments = arguments.with(s.rows as u64).with(s.columns as u64);
    let arguments = arguments.reads(w).reads(b).with(s.eps);
    let arguments = arguments.writes(means).writes(rs).writes(y);
    run(queue, s.kernel("layer_norm"), s.grid(queue), arguments)
}

/// The gradient of a layer norm's input, and what is done with it.
#[derive(Clone, Copy, Debug)]
pub struct InputGradient<'a> {
    /// What is added to it, of its type.
    pub more: Option<Slice<'a>>,
    /// The gradient.
    pub dx: Slice<'a>,
    /// The gradient rounded to the type of the output, if that is wanted too.
    pub thin: Option<Slice<'a>>,
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
    InputGradient { more, dx, thin }: InputGradient<'_>,
    dwb: Slice<'_>,
) -> Result<()> {
    let more_or = (more.unwrap_or(dx), s.dtype);
    let thin_or = (thin.unwrap_or(dy), s.output);
    s.checks(&[(x, s.dtype), (dy, s.output), (dx, s.dtype), more_or, thin_or], &[w], &[means, rs])?;
    holds("the gradients of weight, then bias", dwb, 2 * s.columns as u64, 4)?;
    if s.columns == 0 {
        return Ok(());
    }
    let head = Arguments::new().reads(x).reads(dy).with(s.rows as u64).with(s.columns as u64);
    // A block of the first kernel adds up the parameters' gradients over its rows; fewer blocks leave fewer sums to add.
    let (grid, columns) = (s.grid(queue)[0].div_ceil(2), (s.columns as u64).div_ceil(32) as u32);
    let is_one = s.columns <= COLUMNS && !x.is_empty();
    let slices = match is_one {
        true => grid,
        false => blocks(queue, s.rows as u64 * s.columns as u64, 8).div_ceil(columns).clamp(1, 64),
    };
    let parts = queue.memory(slices as usize * 2 * s.columns * 4)?;
    if !x.is_empty() {
        let arguments = reads_if(head.clone().reads(w).reads(means).reads(rs), more).writes(dx);
        let arguments = writes_if(writes_if(arguments, thin), is_one.then(|| parts.all()));
        run(queue, s.kernel("layer_norm_input"), [grid, 1, 1], arguments)?;
    }
    if !is_one {
        let arguments = head.reads(means).reads(rs).writes(parts.all());
        run(queue, s.kernel("layer_norm_params"), [columns, slices, 1], arguments)?;
    }
    column_sums(queue, (parts.all(), slices), 2 * s.columns as u64, dwb)
}

/// Adds up `slices` vectors of `n` f32 that are stored one after another.
pub(super) fn column_sums(
    queue: &Queue,
    (parts, slices): (Slice<'_>, u32),
    n: u64,
    out: Slice<'_>,
) -> Result<()> {
    let arguments = Arguments::new().reads(parts).with(slices).with(n).writes(out);
    run(queue, Kernel::plain(Family::LayerNorm, "column_sums"), [n.div_ceil(32) as u32, 1, 1], arguments)
}
