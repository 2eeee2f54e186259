//! The operators on whole slices: the same loops for every element type except f16, which converts a block at a time.

use super::arithmetic::Arithmetic;
use super::simd;
use crate::{Isa, ReduceOp, bf16};

/// Loops over slices of one element type, with one class of instructions; sealed, since it is in a private module.
pub trait Loops: Arithmetic {
    /// Computes `out[i] = a[i] (+) b[i]`; the slices have one length.
    #[inline]
    fn combine(isa: Isa, op: ReduceOp, out: &mut [Self], a: &[Self], b: &[Self]) {
        simd::combine(isa, op, out, a, b);
    }

    /// Computes `a[i] = b[i] = a[i] (+) b[i]`; the slices have one length.
    #[inline]
    fn join(isa: Isa, op: ReduceOp, a: &mut [Self], b: &mut [Self]) {
        simd::join(isa, op, a, b);
    }

    /// Computes `into[i] = into[i] (+) from[i]`; the slices have one length.
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
