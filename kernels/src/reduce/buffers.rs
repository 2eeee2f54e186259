//! Reductions of buffers whose element type is known.

use super::simd;
use crate::{Element, Isa, ReduceOp};

/// Reduces `from` into `into`: `into[i] = into[i] (+) from[i]`.
///
/// Floats round to their own type (f16 and bf16 are computed in f32 and then rounded, which gives the same bits); integers wrap;
/// [`ReduceOp::Avg`] sums, and [`divide`] divides once at the end.
///
/// # Panics
/// If the slices differ in length.
#[track_caller]
pub fn reduce<T: Element>(op: ReduceOp, into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len(), "reduce: both buffers must have one length");
    T::reduce(Isa::best(), op, into, from);
}

/// Like [`reduce`], to a third buffer and with one class of instructions: `out[i] = a[i] (+) b[i]`.
///
/// # Panics
/// If the slices differ in length, or the processor has no such instructions.
#[track_caller]
pub fn combine_by<T: Element>(isa: Isa, op: ReduceOp, out: &mut [T], a: &[T], b: &[T]) {
    assert!(out.len() == a.len() && a.len() == b.len(), "combine: all three buffers must have one length");
    assert!(isa <= Isa::best(), "this processor has no {isa}");
    T::combine(isa, op, out, a, b);
}

/// Like [`reduce`], with one class of instructions.
///
/// # Panics
/// If the slices differ in length, or the processor has no such instructions.
#[track_caller]
pub fn reduce_by<T: Element>(isa: Isa, op: ReduceOp, into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len(), "reduce: both buffers must have one length");
    assert!(isa <= Isa::best(), "this processor has no {isa}");
    T::reduce(isa, op, into, from);
}

/// The reduction of two elements, `a (+) b`.
pub fn combine<T: Element>(op: ReduceOp, a: T, b: T) -> T {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => T::sum(a, b),
        ReduceOp::Prod => T::prod(a, b),
        ReduceOp::Min => T::min(a, b),
        ReduceOp::Max => T::max(a, b),
    }
}

/// Divides every element by `parts`, as the end of an average: floats are rounded once, to their own type (f16 and bf16 are divided
/// in f64); integers truncate towards zero.
///
/// # Panics
/// If `parts` is zero.
#[track_caller]
pub fn divide<T: Element>(into: &mut [T], parts: u32) {
    assert_ne!(parts, 0, "divide: an average is over 1 part or more");
    simd::divide(Isa::best(), into, parts);
}
