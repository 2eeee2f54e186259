//! Maximum and mean pooling.

use super::{TensorLayout, blocks, holds, run, small, trained};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;
use bytemuck::{Pod, Zeroable};

/// The shape of a pooling with square windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLaunch {
    /// The number of planes: samples times channels.
    pub planes: usize,
    /// The number of channels.
    pub channels: usize,
    /// The layout of the pictures.
    pub layout: TensorLayout,
    /// Height and width of the input picture.
    pub picture: (usize, usize),
    /// The side of a window in pixels; at least 1.
    pub window: usize,
    /// The pixels from one window to the next; at least 1.
    pub stride: usize,
    /// The pixels around the picture that no maximum counts; less than a window's side, and 0 for means.
    pub padding: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Window {
    planes: u64,
    height: u32,
    width: u32,
    rows: u32,
    columns: u32,
    side: u32,
    stride: u32,
    padding: u32,
    channels: u32,
    last: u32,
    unused: u32,
}

impl PoolLaunch {
    fn window(&self) -> Result<Window> {
        let ((h, w), side, padding) = (self.picture, self.window, self.padding);
        let (tall, wide) = (h + 2 * padding, w + 2 * padding);
        let fits = side > padding && side <= tall.min(wide) && h.min(w) > 0;
        let whole = self.channels > 0 && self.planes.is_multiple_of(self.channels);
        if !fits || !whole || self.stride == 0 || self.planes * h * w > u32::MAX as usize {
            return Err(Error::Argument(format!(
                "pooling windows of side {side}, stride {} and padding {padding} do not fit pictures of {h} x {w}",
                self.stride
            )));
        }
        Ok(Window {
            planes: self.planes as u64,
            height: small("a height", h)?,
            width: small("a width", w)?,
            rows: small("rows", (tall - side) / self.stride + 1)?,
            columns: small("columns", (wide - side) / self.stride + 1)?,
            side: small("a side", side)?,
            stride: small("a stride", self.stride)?,
            padding: small("a padding", padding)?,
            channels: small("channels", self.channels)?,
            last: u32::from(self.layout == TensorLayout::ChannelsLast),
            unused: 0,
        })
    }
}

impl PoolLaunch {
    fn unpadded(&self) -> Result<Window> {
        match self.padding {
            0 => self.window(),
            padding => Err(Error::Argument(format!("mean pooling takes padding 0, not {padding}"))),
        }
    }
}

impl Window {
    fn checks(&self, dtype: DType, x: Slice<'_>, y: Slice<'_>) -> Result<(u64, u64)> {
        trained(dtype)?;
        let input = self.planes * u64::from(self.height) * u64::from(self.width);
        let output = self.planes * u64::from(self.rows) * u64::from(self.columns);
        holds("the input of a pooling", x, input, dtype.size())?;
        holds("the output of a pooling", y, output, dtype.size())?;
        Ok((input, output))
    }
}

/// Writes the maximum of each window, and the index of the maximum in `x` (u32).
///
/// # Errors
/// A buffer of the wrong length.
pub fn max_pool(
    queue: &Queue,
    dtype: DType,
    s: &PoolLaunch,
    x: Slice<'_>,
    y: Slice<'_>,
    winners: Slice<'_>,
) -> Result<()> {
    let window = s.window()?;
    let (_, output) = window.checks(dtype, x, y)?;
    holds("the winners", winners, output, 4)?;
    let arguments = Arguments::new().reads(x).with(window).writes(y).writes(winners);
    run(queue, Kernel::typed(Family::Pool, "max_pool", dtype), [blocks(queue, output, 1), 1, 1], arguments)
}

/// Replaces `dx` by the gradient of the input of [`max_pool`].
///
/// # Errors
/// A buffer of the wrong length.
pub fn max_pool_back(
    queue: &Queue,
    dtype: DType,
    s: &PoolLaunch,
    winners: Slice<'_>,
    dy: Slice<'_>,
    dx: Slice<'_>,
) -> Result<()> {
    let window = s.window()?;
    let (input, output) = window.checks(dtype, dx, dy)?;
    holds("the winners", winners, output, 4)?;
    let arguments = Arguments::new().reads(winners).reads(dy).with(window).writes(dx);
    run(
        queue,
        Kernel::typed(Family::Pool, "max_pool_back", dtype),
        [blocks(queue, input, 1), 1, 1],
        arguments,
    )
}

/// Writes the mean of each window.
///
/// # Errors
/// A buffer of the wrong length.
pub fn mean_pool(queue: &Queue, dtype: DType, s: &PoolLaunch, x: Slice<'_>, y: Slice<'_>) -> Result<()> {
    let window = s.unpadded()?;
    let (_, output) = window.checks(dtype, x, y)?;
    let arguments = Arguments::new().reads(x).with(window).writes(y);
    run(queue, Kernel::typed(Family::Pool, "mean_pool", dtype), [blocks(queue, output, 1), 1, 1], arguments)
}

/// Replaces `dx` by the gradient of the input of [`mean_pool`].
///
/// # Errors
/// A buffer of the wrong length.
pub fn mean_pool_back(
    queue: &Queue,
    dtype: DType,
    s: &PoolLaunch,
    dy: Slice<'_>,
    dx: Slice<'_>,
) -> Result<()> {
    let window = s.unpadded()?;
    let (input, _) = window.checks(dtype, dx, dy)?;
    let arguments = Arguments::new().reads(dy).with(window).writes(dx);
    run(
        queue,
        Kernel::typed(Family::Pool, "mean_pool_back", dtype),
        [blocks(queue, input, 1), 1, 1],
        arguments,
    )
}

/// The sizes that kernels over whole planes need.
struct Planes {
    count: u64,
    /// The number of values of each plane.
    each: u64,
    /// The number of channels if channels are the last dimension, else 0.
    channels: u64,
}

/// The planes of `x`, which holds all values; `y` holds one value per plane, `last` the number of channels if channels are last.
fn planes(dtype: DType, x: Slice<'_>, y: Slice<'_>, last: Option<usize>) -> Result<Planes> {
    trained(dtype)?;
    let (n, planes) = (x.elements(dtype.size())?, y.elements(dtype.size())?);
    let channels = last.unwrap_or(0) as u64;
    if last.is_some() && (channels == 0 || !planes.is_multiple_of(channels)) {
        return Err(Error::Argument(format!(
            "{planes} planes do not divide into samples of {channels} channels"
        )));
    }
    match planes {
        0 if n == 0 => Ok(Planes { count: 0, each: 1, channels: 0 }),
        0 => Err(Error::Argument(format!("{n} values cannot be divided into 0 planes"))),
        count if n > 0 && n.is_multiple_of(count) => Ok(Planes { count, each: n / count, channels }),
        planes => Err(Error::Argument(format!("{n} values do not divide into {planes} planes"))),
    }
}

/// Launches a kernel over planes with threads for `work` values.
fn over_planes(
    queue: &Queue,
    kernel: Kernel,
    (from, to): (Slice<'_>, Slice<'_>),
    Planes { count, each, channels }: Planes,
    work: u64,
) -> Result<()> {
    let arguments = Arguments::new().reads(from).with(count).with(each).with(channels);
    run(queue, kernel, [blocks(queue, work, 1), 1, 1], arguments.writes(to))
}

/// The means of whole planes, one for each element of `y`. `last` is the number of channels if channels are the last dimension.
///
/// # Errors
/// A buffer of the wrong length.
pub fn plane_mean(
    queue: &Queue,
    dtype: DType,
    x: Slice<'_>,
    y: Slice<'_>,
    last: Option<usize>,
) -> Result<()> {
    let planes = planes(dtype, x, y, last)?;
    let work = planes.count * 32;
    over_planes(queue, Kernel::typed(Family::Pool, "plane_mean", dtype), (x, y), planes, work)
}

/// Replaces `dx` by the gradient of the input of [`plane_mean`].
///
/// # Errors
/// A buffer of the wrong length.
pub fn plane_mean_back(
    queue: &Queue,
    dtype: DType,
    dy: Slice<'_>,
    dx: Slice<'_>,
    last: Option<usize>,
) -> Result<()> {
    let planes = planes(dtype, dx, dy, last)?;
    let work = planes.count * planes.each;
    over_planes(queue, Kernel::typed(Family::Pool, "plane_mean_back", dtype), (dy, dx), planes, work)
}
