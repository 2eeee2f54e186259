//! Packing of many tensors into one bucket and back, casts, and the search for infinities.

use super::{blocks, holds, run, small};
use crate::{Arguments, Error, Family, Kernel, Memory, Queue, Result, Slice};
use allfold_kernels::DType;
use bytemuck::{Pod, Zeroable};

/// The number of elements that one block moves: JOB of the kernels.
pub(super) const JOB: u64 = 16_384;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Piece {
    tensor: u64,
    at: u64,
    count: u64,
}

/// The jobs of the blocks: (tensor, number of its part of JOB elements), for tensors with `counts` elements.
pub(super) fn jobs(counts: impl IntoIterator<Item = u64>) -> Result<Vec<[u32; 2]>> {
    let mut jobs = Vec::new();
    for (nth, count) in counts.into_iter().enumerate() {
        let (nth, parts) = (small("tensors", nth)?, small("parts", count.div_ceil(JOB) as usize)?);
        jobs.extend((0..parts).map(|part| [nth, part]));
    }
    Ok(jobs)
}

/// The tensors of a bucket, in the bucket's order. The kernel's tables are made once; the tensors must outlive this value.
#[derive(Debug)]
pub struct BucketLaunch<'a> {
    dtype: DType,
    elements: u64,
    jobs: u32,
    pieces: Memory,
    table: Memory,
    tensors: Vec<Slice<'a>>,
}

impl<'a> BucketLaunch<'a> {
    /// A bucket of tensors of one type.
    ///
    /// # Errors
    /// [`Error::Argument`] for a type that is no float.
    pub fn new(queue: &Queue, dtype: DType, tensors: &[Slice<'a>]) -> Result<BucketLaunch<'a>> {
        floats(dtype)?;
        let (mut pieces, mut at) = (Vec::new(), 0);
        for tensor in tensors {
            let count = tensor.elements(dtype.size())?;
            pieces.push(Piece { tensor: tensor.address(), at, count });
            at += count;
        }
        let jobs = jobs(pieces.iter().map(|piece| piece.count))?;
        let (pieces, table) = (queue.upload(&pieces)?, queue.upload(&jobs)?);
        let (jobs, tensors) = (small("jobs", jobs.len())?, tensors.to_vec());
        Ok(BucketLaunch { dtype, elements: at, jobs, pieces, table, tensors })
    }

    /// The number of elements of all tensors together.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Copies every tensor into the bucket, divided by `parts` (0: not divided).
    ///
    /// # Errors
    /// [`Error::Argument`] if the bucket has another length.
    pub fn pack(&self, queue: &Queue, bucket: Slice<'_>, parts: u32) -> Result<()> {
        self.go(queue, "pack", (bucket, true), |arguments| arguments.with(parts))
    }

    /// Copies the bucket back into every tensor, multiplied by `factor`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the bucket has another length.
    pub fn unpack(&self, queue: &Queue, bucket: Slice<'_>, factor: f32) -> Result<()> {
        self.go(queue, "unpack", (bucket, false), |arguments| arguments.with(factor))
    }

    /// Launches `stem`; `into` is true if the bucket is written and the tensors are read, false for the other direction.
    fn go(
        &self,
        queue: &Queue,
        stem: &str,
        (bucket, into): (Slice<'_>, bool),
        last: impl FnOnce(Arguments) -> Arguments,
    ) -> Result<()> {
        holds("the bucket", bucket, self.elements, self.dtype.size())?;
        if self.jobs == 0 {
            return Ok(());
        }
        let arguments = if into { Arguments::new().writes(bucket) } else { Arguments::new().reads(bucket) };
        let arguments = arguments.reads(self.pieces.all()).reads(self.table.all());
        let arguments = self.tensors.iter().fold(arguments, |a, tensor| a.touches(*tensor, !into));
        run(queue, Kernel::typed(Family::Pack, stem, self.dtype), [self.jobs, 1, 1], last(arguments))
    }
}

fn floats(dtype: DType) -> Result<()> {
    match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => Ok(()),
        other => Err(Error::Argument(format!("gradients are f64, f32, f16 or bf16, not {other}"))),
    }
}

/// Sets `found` (u32) to 1 if any element of `x` is NaN or infinite; otherwise `found` is unchanged.
///
/// # Errors
/// [`Error::Argument`] for a type that is no float.
pub fn found_inf(queue: &Queue, dtype: DType, x: Slice<'_>, found: Slice<'_>) -> Result<()> {
    floats(dtype)?;
    holds("the flag", found, 1, 4)?;
    let n = x.elements(dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().reads(x).writes(found).with(n);
        let grid = [blocks(queue, n, 16 / dtype.size() as u64), 1, 1];
        run(queue, Kernel::typed(Family::Pack, "found_inf", dtype), grid, arguments)?;
    }
    Ok(())
}

/// Multiplies `x` by `factor` and searches it as [`found_inf`] does, in one pass.
///
/// # Errors
/// [`Error::Argument`] for a type that is no float.
pub fn unscale(queue: &Queue, dtype: DType, x: Slice<'_>, factor: f32, found: Slice<'_>) -> Result<()> {
    floats(dtype)?;
    holds("the flag", found, 1, 4)?;
    let n = x.elements(dtype.size())?;
    if n > 0 {
        let arguments = Arguments::new().updates(x).with(factor).writes(found).with(n);
        let grid = [blocks(queue, n, 16 / dtype.size() as u64), 1, 1];
        run(queue, Kernel::typed(Family::Pack, "unscale", dtype), grid, arguments)?;
    }
    Ok(())
}

/// `into[i] = from[i] * factor`, cast from one float type to another.
///
/// # Errors
/// [`Error::Argument`] for an unsupported pair of types, or lengths that differ.
pub fn cast(
    queue: &Queue,
    (from_type, from): (DType, Slice<'_>),
    (into_type, into): (DType, Slice<'_>),
    factor: f32,
) -> Result<()> {
    use DType::{Bf16, F16, F32, F64};
    let pairs =
        [(F32, F16), (F32, Bf16), (F16, F32), (Bf16, F32), (F16, Bf16), (Bf16, F16), (F64, F32), (F32, F64)];
    if !pairs.contains(&(from_type, into_type)) {
        return Err(Error::Argument(format!("no kernel converts {from_type} to {into_type}")));
    }
    let n = from.elements(from_type.size())?;
    holds("the result of a cast", into, n, into_type.size())?;
    if n > 0 {
        let kernel = Kernel::plain(Family::Cast, &format!("cast_{from_type}_{into_type}"));
        let arguments = Arguments::new().writes(into).reads(from).with(factor).with(n);
        run(queue, kernel, [blocks(queue, n, 8), 1, 1], arguments)?;
    }
    Ok(())
}

/// `into [B, C, R] = from [B, R, C]`: converts pictures with R channels and C pixels to channels last; with R and C exchanged it converts
/// them back.
///
/// # Errors
/// [`Error::Argument`] for a type other than f32, f16 and bf16, or lengths that do not match.
pub fn transpose(
    queue: &Queue,
    dtype: DType,
    into: Slice<'_>,
    from: Slice<'_>,
    (rows, columns): (usize, usize),
) -> Result<()> {
    super::trained(dtype)?;
    let (n, each) = (from.elements(dtype.size())?, (rows * columns) as u64);
    holds("the transposed batch", into, n, dtype.size())?;
    if n == 0 {
        return Ok(());
    }
    if each == 0 || !n.is_multiple_of(each) {
        return Err(Error::Argument(format!("{n} values do not divide into matrices of {rows} x {columns}")));
    }
    let tiles = n / each * (rows.div_ceil(64) * columns.div_ceil(64)) as u64;
    let arguments = Arguments::new().writes(into).reads(from).with(rows as u64).with(columns as u64);
    let grid = [small("tiles", tiles as usize)?, 1, 1];
    run(queue, Kernel::typed(Family::Cast, "turn", dtype), grid, arguments)
}
