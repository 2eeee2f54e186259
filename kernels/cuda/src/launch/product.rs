//! Simple matrix products and convolutions: used where cuBLASLt or cuDNN is missing, and to check these libraries.

use super::{TensorLayout, blocks, holds, run, small, trained};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;
use bytemuck::{Pod, Zeroable};

/// A row-major matrix in memory, which may be read transposed.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMatrix<'a> {
    /// The elements of the matrix.
    pub data: Slice<'a>,
    /// The number of rows as the product uses them, after a transpose.
    pub rows: usize,
    /// The number of columns as the product uses them, after a transpose.
    pub columns: usize,
    /// Whether the memory holds the transpose, `columns` by `rows`.
    pub transposed: bool,
    /// The distance in elements of the rows that the memory holds, if there are zeros between them; otherwise 0.
    pub apart: usize,
}

impl<'a> DeviceMatrix<'a> {
    /// A matrix of `rows` and `columns` as the product uses them, whose rows in memory are adjacent.
    pub fn new(data: Slice<'a>, [rows, columns]: [usize; 2], transposed: bool) -> DeviceMatrix<'a> {
        DeviceMatrix { data, rows, columns, transposed, apart: 0 }
    }

    /// The rows and columns that the memory holds, and the distance of its rows.
    pub(crate) fn stored(&self) -> (usize, usize, usize) {
        let (rows, columns) =
            if self.transposed { (self.columns, self.rows) } else { (self.rows, self.columns) };
        (rows, columns, self.apart.max(columns))
    }

    /// Checks the length of the memory.
    pub(crate) fn check(&self, dtype: DType) -> Result<()> {
        let (rows, _, apart) = self.stored();
        holds("a matrix", self.data, (rows * apart) as u64, dtype.size())
    }

    fn strides(&self) -> (u64, u64) {
        let apart = self.stored().2 as u64;
        if self.transposed { (1, apart) } else { (apart, 1) }
    }
}

/// The memory of a product, row by row.
#[derive(Clone, Copy, Debug)]
pub struct ProductOutput<'a> {
    /// The elements.
    pub data: Slice<'a>,
    /// The element type: that of the operands, or f32.
    pub dtype: DType,
    /// The distance of rows in elements, if they are not adjacent; otherwise 0.
    pub apart: usize,
    /// The share of what the memory holds that is added to the product.
    pub keep: f32,
}

impl<'a> ProductOutput<'a> {
    /// Adjacent rows that are replaced.
    pub fn new(data: Slice<'a>, dtype: DType) -> ProductOutput<'a> {
        ProductOutput { data, dtype, apart: 0, keep: 0.0 }
    }

    /// Checks type and length against those of a product of `m` rows and `n` columns; returns the distance of rows.
    pub(crate) fn check(&self, dtype: DType, (m, n): (usize, usize)) -> Result<usize> {
        let apart = self.apart.max(n);
        if self.dtype != dtype && self.dtype != DType::F32 {
            return Err(Error::Argument(format!(
                "a product of {dtype} is of {dtype} or f32, not {}",
                self.dtype
            )));
        }
        holds("a product", self.data, (m * apart) as u64, self.dtype.size()).map(|()| apart)
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Product {
    m: u64,
    n: u64,
    k: u64,
    a_row: u64,
    a_column: u64,
    b_row: u64,
    b_column: u64,
    c_row: u64,
    bias: u64,
    keep: f32,
    narrow_bias: u32,
}

/// Copies rows of `columns` 16-bit elements that lie `from` elements apart in `x` to rows `to` elements apart in `into`, and writes
/// zeros to the rest of `into`.
///
/// # Errors
/// A buffer of the wrong length.
pub fn restride(
    queue: &Queue,
    (x, from): (Slice<'_>, usize),
    (into, to): (Slice<'_>, usize),
    (rows, columns): (usize, usize),
) -> Result<()> {
    let all = (into.elements(2)? as usize / to.max(1)).max(rows);
    holds("the copied rows", x, (rows * from) as u64, 2)?;
    holds("the copy of the rows", into, (all * to) as u64, 2)?;
    if columns > from.min(to) {
        return Err(Error::Argument(format!("rows of {columns} elements do not fit {from} or {to} apart")));
    }
    let arguments = Arguments::new().reads(x).with(rows as u64).with(columns as u64);
    let arguments = arguments.with(from as u64).with(to as u64).with(all as u64).writes(into);
    let grid = [blocks(queue, all as u64 * 256, 1), 1, 1];
    run(queue, Kernel::plain(Family::Matmul, "restride"), grid, arguments)
}

/// The size of the elements of a bias of `n` values: those of the operands' type if the bias is as long, else f32.
pub(crate) fn bias_size(dtype: DType, bias: Slice<'_>, n: usize) -> usize {
    if bias.len() == n * dtype.size() { dtype.size() } else { 4 }
}

/// `c = a b + keep c + bias`, with sums in f32, rounded once; `bias` has one value per column, of f32 or of the operands' type.
///
/// # Errors
/// Operands whose shapes do not match.
pub fn matmul(
    queue: &Queue,
    dtype: DType,
    (a, b): (DeviceMatrix<'_>, DeviceMatrix<'_>),
    c: ProductOutput<'_>,
    bias: Option<Slice<'_>>,
) -> Result<()> {
    trained(dtype)?;
    let (m, n, k) = (a.rows, b.columns, a.columns);
    if b.rows != k {
        return Err(Error::Argument(format!(
            "matrices of {m} x {k} and {} x {n} cannot be multiplied: the inner sizes differ",
            b.rows
        )));
    }
    [a, b].iter().try_for_each(|matrix| matrix.check(dtype))?;
    let apart = c.check(dtype, (m, n))?;
    if let Some(bias) = bias {
        holds("a bias", bias, n as u64, bias_size(dtype, bias, n))?;
    }
    if c.data.is_empty() {
        return Ok(());
    }
    let ((a_row, a_column), (b_row, b_column)) = (a.strides(), b.strides());
    let (m64, n64, k64) = (m as u64, n as u64, k as u64);
    let bias_at = bias.map_or(0, |bias| bias.address());
    let shape = Product {
        m: m64,
        n: n64,
        k: k64,
        a_row,
        a_column,
        b_row,
        b_column,
        c_row: apart as u64,
        bias: bias_at,
        keep: c.keep,
        narrow_bias: u32::from(bias.is_some_and(|bias| bias_size(dtype, bias, n) < 4)),
    };
    let grid = [small("columns", n.div_ceil(64))?, small("rows", m.div_ceil(64))?, 1];
    if grid[1] > 65_535 {
        return Err(Error::Argument(format!("the matrix has {m} rows; the kernel takes at most 4,194,240")));
    }
    let arguments = Arguments::new().reads(a.data).reads(b.data).writes(c.data);
    let arguments = bias.iter().fold(arguments, |arguments, bias| arguments.touches(*bias, false));
    let stem = if c.dtype == dtype { "matmul" } else { "matmul_wide" };
    run(queue, Kernel::typed(Family::Matmul, stem, dtype), grid, arguments.with(shape))
}

/// A convolution with square filters: x `[N, C, H, W]`, w `[K, C / G, R, R]`, y `[N, K, P, Q]`; channels last: x `[N, H, W, C]`,
/// w `[K, R, R, C / G]`, y `[N, P, Q, K]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// The element type of all operands.
    pub dtype: DType,
    /// The number of samples, N.
    pub n: usize,
    /// The number of input channels, C.
    pub channels: usize,
    /// Height and width of the input picture, H and W.
    pub picture: (usize, usize),
    /// The number of filters, K.
    pub filters: usize,
    /// The side of a filter in pixels, R.
    pub side: usize,
    /// The pixels from one window to the next; at least 1.
    pub stride: usize,
    /// The width of the zero padding around the picture, in pixels.
    pub padding: usize,
    /// The number of groups, G, a divisor of C and K: each of G equal parts of the filters reads only its part of the channels.
    pub groups: usize,
    /// The memory layout of pictures and filters.
    pub layout: TensorLayout,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Shape {
    n: u64,
    channels: u32,
    height: u32,
    width: u32,
    filters: u32,
    rows: u32,
    columns: u32,
    side: u32,
    stride: u32,
    padding: u32,
    groups: u32,
    last: u32,
    unused: u32,
}

impl Conv {
    /// Height and width of the output picture, P and Q.
    ///
    /// # Errors
    /// A filter larger than the padded picture, or a stride of 0.
    pub fn output_picture(&self) -> Result<(usize, usize)> {
        let (padded, side) =
            ((self.picture.0 + 2 * self.padding, self.picture.1 + 2 * self.padding), self.side);
        if side == 0 || side > padded.0.min(padded.1) || self.stride == 0 {
            let (h, w) = padded;
            return Err(Error::Argument(format!(
                "a filter of side {side} and stride {} does not fit pictures of {h} x {w}",
                self.stride
            )));
        }
        Ok(((padded.0 - side) / self.stride + 1, (padded.1 - side) / self.stride + 1))
    }

    /// Checks that the slices `[x, w, y]` have the lengths that the shape needs.
    pub(crate) fn check(&self, parts: [Slice<'_>; 3]) -> Result<()> {
        self.shape(parts).map(drop)
    }

    /// Checks the slices `[x, w, y]`; returns the kernel's shape and the number of elements of each.
    fn shape(&self, [x, w, y]: [Slice<'_>; 3]) -> Result<(Shape, [u64; 3])> {
        trained(self.dtype)?;
        let (p, q) = self.output_picture()?;
        let groups = self.groups;
        if groups == 0 || !self.channels.is_multiple_of(groups) || !self.filters.is_multiple_of(groups) {
            let (channels, filters) = (self.channels, self.filters);
            return Err(Error::Argument(format!(
                "{channels} input and {filters} output channels do not divide into {groups} groups"
            )));
        }
        let input = (self.n * self.channels * self.picture.0 * self.picture.1) as u64;
        let weights = (self.filters * self.channels / groups * self.side * self.side) as u64;
        let output = (self.n * self.filters * p * q) as u64;
        holds("a convolution's input", x, input, self.dtype.size())?;
        holds("a convolution's filters", w, weights, self.dtype.size())?;
        holds("a convolution's output", y, output, self.dtype.size())?;
        let shape = Shape {
            n: self.n as u64,
            channels: small("channels", self.channels)?,
            height: small("a height", self.picture.0)?,
            width: small("a width", self.picture.1)?,
            filters: small("filters", self.filters)?,
            rows: small("rows", p)?,
            columns: small("columns", q)?,
            side: small("a side", self.side)?,
            stride: small("a stride", self.stride)?,
            padding: small("a padding", self.padding)?,
            groups: small("groups", groups)?,
            last: u32::from(self.layout == TensorLayout::ChannelsLast),
            unused: 0,
        };
        Ok((shape, [input, weights, output]))
    }

    fn go(&self, queue: &Queue, stem: &str, parts: [Slice<'_>; 3], shape: Shape, work: u64) -> Result<()> {
        let [a, b, out] = parts;
        if !out.is_empty() {
            let arguments = Arguments::new().reads(a).reads(b).with(shape).writes(out);
            let kernel = Kernel::typed(Family::Matmul, stem, self.dtype);
            run(queue, kernel, [blocks(queue, work, 1), 1, 1], arguments)?;
        }
        Ok(())
    }
}

/// The convolution `y = x * w`.
///
/// # Errors
/// Operands whose shapes do not match.
pub fn conv(queue: &Queue, s: &Conv, x: Slice<'_>, w: Slice<'_>, y: Slice<'_>) -> Result<()> {
    let (shape, [_, _, output]) = s.shape([x, w, y])?;
    s.go(queue, "conv", [x, w, y], shape, output)
}

/// Replaces `dx` by the gradient of the convolution's input.
///
/// # Errors
/// Operands whose shapes do not match.
pub fn conv_input(queue: &Queue, s: &Conv, dy: Slice<'_>, w: Slice<'_>, dx: Slice<'_>) -> Result<()> {
    let (shape, [input, _, _]) = s.shape([dx, w, dy])?;
    s.go(queue, "conv_input", [dy, w, dx], shape, input)
}

/// Replaces `dw` by the gradient of the convolution's filters.
///
/// # Errors
/// Operands whose shapes do not match.
pub fn conv_weight(queue: &Queue, s: &Conv, x: Slice<'_>, dy: Slice<'_>, dw: Slice<'_>) -> Result<()> {
    let (shape, [_, weights, _]) = s.shape([x, dw, dy])?;
    s.go(queue, "conv_weight", [x, dy, dw], shape, weights * 256)
}
