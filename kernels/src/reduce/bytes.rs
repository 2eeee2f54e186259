//! Reductions of bytes whose element type is known at run time, at any alignment.

use super::simd;
use crate::{DType, Element, Isa, ReduceOp, bf16, f16};

/// Like [`super::reduce`], on the bytes of `dtype` elements, at any alignment.
///
/// # Panics
/// If the slices differ in length, or hold no whole number of elements.
#[track_caller]
pub fn reduce_bytes(dtype: DType, op: ReduceOp, into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "reduce_bytes: both buffers must have one length");
    assert_eq!(into.len() % dtype.size(), 0, "reduce_bytes: {} bytes are no whole {dtype}s", into.len());
    dispatch(dtype, Reduce { op, into, from });
}

/// Like [`super::divide`], on the bytes of `dtype` elements, at any alignment.
///
/// # Panics
/// If `parts` is zero, or the slice holds no whole number of elements.
#[track_caller]
pub fn divide_bytes(dtype: DType, into: &mut [u8], parts: u32) {
    assert_ne!(parts, 0, "divide_bytes: an average is over 1 part or more");
    assert_eq!(into.len() % dtype.size(), 0, "divide_bytes: {} bytes are no whole {dtype}s", into.len());
    dispatch(dtype, Divide { into, parts });
}

/// A function that is generic over the element type, run once the type is known.
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

/// The number of bytes that are copied at a time where the data are not aligned; small enough for the first-level cache.
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
