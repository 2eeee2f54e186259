//! Copies of rows between places with other strides.

use super::{blocks, run, trained};
use crate::{Arguments, Error, Family, Kernel, Queue, Result, Slice};
use allfold_kernels::DType;
use bytemuck::{Pod, Zeroable};

/// The distances between rows on one side of a copy, in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct RowStrides {
    /// Between groups of rows.
    pub outer: u64,
    /// Between the rows of a group.
    pub row: u64,
}

/// Several groups of equally many rows, each of adjacent elements, in the same order on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsLaunch {
    /// The number of groups.
    pub outer: usize,
    /// The number of rows of a group.
    pub rows: usize,
    /// The number of elements of a row.
    pub columns: usize,
    /// The strides of the source.
    pub from: RowStrides,
    /// The strides of the destination.
    pub into: RowStrides,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Shape {
    rows: u32,
    columns: u32,
    from: RowStrides,
    into: RowStrides,
}

impl RowsLaunch {
    /// The number of elements from the first to the last, on a side with these strides.
    fn span(&self, strides: RowStrides) -> u64 {
        let last = |count: usize| count.saturating_sub(1) as u64;
        last(self.outer) * strides.outer + last(self.rows) * strides.row + self.columns as u64
    }

    fn launch(
        &self,
        queue: &Queue,
        (stem, dtype): (&str, DType),
        (from, read): (Slice<'_>, DType),
        (into, written): (Slice<'_>, DType),
    ) -> Result<()> {
        trained(dtype)?;
        let n = (self.outer * self.rows * self.columns) as u64;
        if n == 0 {
            return Ok(());
        }
        let (have, room) = (from.elements(read.size())?, into.elements(written.size())?);
        let (need, fill) = (self.span(self.from), self.span(self.into));
        if have < need || room < fill || n > u64::from(u32::MAX) {
            return Err(Error::Argument(format!(
                "{n} elements in rows take {need} elements to read and {fill} to write (at most {} in all), and there are {have} and \
                 {room}",
                u32::MAX
            )));
        }
        let shape =
            Shape { rows: self.rows as u32, columns: self.columns as u32, from: self.from, into: self.into };
        let arguments = Arguments::new().reads(from).writes(into).with(shape).with(n);
        run(queue, Kernel::typed(Family::Rows, stem, dtype), [blocks(queue, n, 4), 1, 1], arguments)
    }
}

/// Copies rows of one type.
///
/// # Errors
/// A buffer that is too short; a type that networks are not trained in.
pub fn rows(queue: &Queue, dtype: DType, s: &RowsLaunch, from: Slice<'_>, into: Slice<'_>) -> Result<()> {
    s.launch(queue, ("rows", dtype), (from, dtype), (into, dtype))
}

/// Adds rows of `dtype` to rows of f32.
///
/// # Errors
/// The errors of [`rows`].
pub fn rows_sum(queue: &Queue, dtype: DType, s: &RowsLaunch, from: Slice<'_>, into: Slice<'_>) -> Result<()> {
    s.launch(queue, ("rows_sum", dtype), (from, dtype), (into, DType::F32))
}

/// Copies rows of f32 to rows of `dtype`, rounded.
///
/// # Errors
/// The errors of [`rows`].
pub fn rows_round(
    queue: &Queue,
    dtype: DType,
    s: &RowsLaunch,
    from: Slice<'_>,
    into: Slice<'_>,
) -> Result<()> {
    s.launch(queue, ("rows_round", dtype), (from, DType::F32), (into, dtype))
}
