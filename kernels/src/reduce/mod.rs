//! Reducing one buffer into another, element by element, the same bits whatever the order of the two.
//!
//! ```text
//! into   a0 a1 a2 ..          into[i] = into[i] (+) from[i], rounded to the element's type
//! from   b0 b1 b2 ..          every NaN result is the canonical quiet NaN, so a (+) b == b (+) a to the bit
//! ```
//!
//! That makes a result a function of its reduction tree alone, whichever operand came over the wire. Rust never
//! contracts a multiplication and an addition into one, so no node of the tree is rounded differently elsewhere.
//! Source of the rules for NaN and signed zeros: IEEE 754-2019, sections 6.2 and 9.6.

mod float;
mod half;
mod int;
pub(crate) mod simd;

use crate::Isa;
use crate::{DType, Element, ReduceOp, bf16, f16};
pub use simd::{copy_large, copy_part};

/// What each element type does, one element at a time; sealed by living in a private module.
pub trait Arithmetic: Copy {
    /// a + b.
    fn sum(a: Self, b: Self) -> Self;
    /// a * b.
    fn prod(a: Self, b: Self) -> Self;
    /// The lesser.
    fn min(a: Self, b: Self) -> Self;
    /// The greater.
    fn max(a: Self, b: Self) -> Self;
    /// `into[i] = into[i] / parts`; `parts` is not zero.
    fn divide(into: &mut [Self], parts: u32);

    /// `out[i] = a[i] (+) b[i]`; the slices have one length.
    #[inline]
    fn combine(isa: Isa, op: ReduceOp, out: &mut [Self], a: &[Self], b: &[Self]) {
        simd::combine(isa, op, out, a, b);
    }

    /// `a[i] = b[i] = a[i] (+) b[i]`; the slices have one length.
    #[inline]
    fn join(isa: Isa, op: ReduceOp, a: &mut [Self], b: &mut [Self]) {
        simd::join(isa, op, a, b);
    }

    /// `into[i] = into[i] (+) from[i]`; the slices have one length.
    #[inline]
    fn reduce(isa: Isa, op: ReduceOp, into: &mut [Self], from: &[Self]) {
        simd::reduce(isa, op, into, from);
    }
}

/// Reduces `from` into `into`: `into[i] = into[i] (+) from[i]`.
///
/// Floats round to their own type (f16 and bf16 are computed in f32 and rounded once, which is the same);
/// integers wrap; [`ReduceOp::Avg`] sums, and [`divide`] finishes it once at the end.
///
/// # Panics
/// If the slices differ in length: that is a mistake of the caller, as with `copy_from_slice`.
#[track_caller]
pub fn reduce<T: Element>(op: ReduceOp, into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len(), "reduce: both buffers must have one length");
    T::reduce(Isa::best(), op, into, from);
}

/// [`reduce`] to a third buffer: `out[i] = a[i] (+) b[i]`, by the instructions of one class.
///
/// # Panics
/// If the slices differ in length, or the processor has no such instructions.
#[track_caller]
pub fn combine_by<T: Element>(isa: Isa, op: ReduceOp, out: &mut [T], a: &[T], b: &[T]) {
    assert!(out.len() == a.len() && a.len() == b.len(), "combine: all three buffers must have one length");
    assert!(isa <= Isa::best(), "this processor has no {isa}");
    T::combine(isa, op, out, a, b);
}

/// [`reduce`] by the instructions of one class.
///
/// # Panics
/// If the slices differ in length, or the processor has no such instructions.
#[track_caller]
pub fn reduce_by<T: Element>(isa: Isa, op: ReduceOp, into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len(), "reduce: both buffers must have one length");
    assert!(isa <= Isa::best(), "this processor has no {isa}");
    T::reduce(isa, op, into, from);
}

/// One element of [`reduce`]: `a (+) b`.
pub fn combine<T: Element>(op: ReduceOp, a: T, b: T) -> T {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => T::sum(a, b),
        ReduceOp::Prod => T::prod(a, b),
        ReduceOp::Min => T::min(a, b),
        ReduceOp::Max => T::max(a, b),
    }
}

/// Divides every element by `parts`, which is how an average ends: floats are divided in their own type and
/// rounded once (f16 and bf16 in f32, then rounded); integers truncate towards zero.
///
/// # Panics
/// If `parts` is zero.
#[track_caller]
pub fn divide<T: Element>(into: &mut [T], parts: u32) {
    assert_ne!(parts, 0, "divide: an average is over 1 part or more");
    simd::divide(Isa::best(), into, parts);
}

/// [`reduce`] on the bytes of `dtype` elements, at any alignment.
///
/// # Panics
/// If the slices differ in length, or hold no whole number of elements.
#[track_caller]
pub fn reduce_bytes(dtype: DType, op: ReduceOp, into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "reduce_bytes: both buffers must have one length");
    assert_eq!(into.len() % dtype.size(), 0, "reduce_bytes: {} bytes are no whole {dtype}s", into.len());
    dispatch(dtype, Reduce { op, into, from });
}

/// [`divide`] on the bytes of `dtype` elements, at any alignment.
///
/// # Panics
/// If `parts` is zero, or the slice holds no whole number of elements.
#[track_caller]
pub fn divide_bytes(dtype: DType, into: &mut [u8], parts: u32) {
    assert_ne!(parts, 0, "divide_bytes: an average is over 1 part or more");
    assert_eq!(into.len() % dtype.size(), 0, "divide_bytes: {} bytes are no whole {dtype}s", into.len());
    dispatch(dtype, Divide { into, parts });
}

/// Something to do once the element type is known.
pub(crate) trait Typed {
    fn run<T: Element>(self);
}

pub(crate) fn dispatch(dtype: DType, job: impl Typed) {
    match dtype {
        DType::F64 => job.run::<f64>(),
        DType::F32 => job.run::<f32>(),
        DType::F16 => job.run::<f16>(),
        DType::Bf16 => job.run::<bf16>(),
        DType::I8 => job.run::<i8>(),
        DType::I16 => job.run::<i16>(),
        DType::I32 => job.run::<i32>(),
        DType::I64 => job.run::<i64>(),
        DType::U8 => job.run::<u8>(),
    }
}

/// Bytes copied at a time where they are not aligned to their type; small enough for the first-level cache.
const BLOCK: usize = 4096;

struct Reduce<'a> {
    op: ReduceOp,
    into: &'a mut [u8],
    from: &'a [u8],
}

impl Typed for Reduce<'_> {
    fn run<T: Element>(self) {
        let Reduce { op, into, from } = self;
        if let (Ok(into), Ok(from)) =
            (bytemuck::try_cast_slice_mut::<u8, T>(into), bytemuck::try_cast_slice::<u8, T>(from))
        {
            return T::reduce(Isa::best(), op, into, from);
        }
        let (mut a, mut b) = ([0u64; BLOCK / 8], [0u64; BLOCK / 8]);
        for (into, from) in into.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
            let (a, b) = (aligned(&mut a, into.len()), aligned(&mut b, into.len()));
            a.copy_from_slice(into);
            b.copy_from_slice(from);
            T::reduce(Isa::best(), op, bytemuck::cast_slice_mut(a), bytemuck::cast_slice(b));
            into.copy_from_slice(a);
        }
    }
}

struct Divide<'a> {
    into: &'a mut [u8],
    parts: u32,
}

impl Typed for Divide<'_> {
    fn run<T: Element>(self) {
        if let Ok(into) = bytemuck::try_cast_slice_mut::<u8, T>(self.into) {
            return simd::divide(Isa::best(), into, self.parts);
        }
        let mut block = [0u64; BLOCK / 8];
        for into in self.into.chunks_mut(BLOCK) {
            let block = aligned(&mut block, into.len());
            block.copy_from_slice(into);
            simd::divide::<T>(Isa::best(), bytemuck::cast_slice_mut(block), self.parts);
            into.copy_from_slice(block);
        }
    }
}

/// The first `bytes` bytes of a block that is aligned for every element type.
fn aligned(block: &mut [u64], bytes: usize) -> &mut [u8] {
    &mut bytemuck::cast_slice_mut(block)[..bytes]
}

#[cfg(test)]
mod tests;
