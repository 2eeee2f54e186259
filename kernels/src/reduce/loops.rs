//! The operators on whole slices: the same loops for every element type but f16, whose conversions go a block at a time.

use super::arithmetic::Arithmetic;
use super::simd;
use crate::{Isa, ReduceOp, bf16};

/// The loops over one type of elements, by the instructions of one class; sealed by living in a private module.
pub trait Loops: Arithmetic {
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

macro_rules! plain {
    ($($element:ty),*) => {$(
        impl Loops for $element {}
    )*};
}

plain!(f64, f32, bf16, i8, i16, i32, i64, u8);
