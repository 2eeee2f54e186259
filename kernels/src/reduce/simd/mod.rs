//! The loops of the reductions, compiled for every class of vector instructions and chosen at run time.
//!
//! ```text
//! Arithmetic::sum(a, b) --- one element, written without branches
//!        |
//!     over(out, a, b) ----- a loop, inlined into a function for each class and vectorised there by the compiler
//!      /     |     \
//!  scalar  AVX2  AVX-512    the same operations on the same elements, so the same bits
//! ```

pub(super) mod half;
mod stream;

use super::arithmetic::Arithmetic;
use crate::{Isa, ReduceOp};
pub(crate) use stream::{copy, copy_apart, fence};
pub use stream::{copy_large, copy_part};

/// Computes `out[i] = f(a[i], b[i])`; the three slices have one length.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "by index it vectorises whatever is inlined into it")]
fn over<T: Copy>(out: &mut [T], a: &[T], b: &[T], f: impl Fn(T, T) -> T) {
    let (a, b) = (&a[..out.len()], &b[..out.len()]);
    for i in 0..out.len() {
        out[i] = f(a[i], b[i]);
    }
}

/// Computes `into[i] = f(into[i], from[i])`; both slices have one length.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "by index it vectorises whatever is inlined into it")]
fn within<T: Copy>(into: &mut [T], from: &[T], f: impl Fn(T, T) -> T) {
    let from = &from[..into.len()];
    for i in 0..into.len() {
        into[i] = f(into[i], from[i]);
    }
}

#[inline(always)]
fn combine_lanes<T: Arithmetic>(op: ReduceOp, out: &mut [T], a: &[T], b: &[T]) {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => over(out, a, b, T::sum),
        ReduceOp::Prod => over(out, a, b, T::prod),
        ReduceOp::Min => over(out, a, b, T::min),
        ReduceOp::Max => over(out, a, b, T::max),
    }
}

#[inline(always)]
fn reduce_lanes<T: Arithmetic>(op: ReduceOp, into: &mut [T], from: &[T]) {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => within(into, from, T::sum),
        ReduceOp::Prod => within(into, from, T::prod),
        ReduceOp::Min => within(into, from, T::min),
        ReduceOp::Max => within(into, from, T::max),
    }
}

/// Computes `a[i] = b[i] = f(a[i], b[i])`; both slices have one length.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "by index it vectorises whatever is inlined into it")]
fn both<T: Copy>(a: &mut [T], b: &mut [T], f: impl Fn(T, T) -> T) {
    let b = &mut b[..a.len()];
    for i in 0..a.len() {
        let value = f(a[i], b[i]);
        a[i] = value;
        b[i] = value;
    }
}

#[inline(always)]
fn join_lanes<T: Arithmetic>(op: ReduceOp, a: &mut [T], b: &mut [T]) {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => both(a, b, T::sum),
        ReduceOp::Prod => both(a, b, T::prod),
        ReduceOp::Min => both(a, b, T::min),
        ReduceOp::Max => both(a, b, T::max),
    }
}

/// Defines a function for each class; all call one body, which is inlined and so compiled for each class.
macro_rules! classes {
    ($(#[$about:meta])* $name:ident, $avx2:ident, $avx512:ident, $body:expr,
     ($($argument:ident: $type:ty),*)) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,f16c")]
        fn $avx2<T: Arithmetic>($($argument: $type),*) {
            $body($($argument),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        fn $avx512<T: Arithmetic>($($argument: $type),*) {
            $body($($argument),*)
        }

        $(#[$about])*
        pub(crate) fn $name<T: Arithmetic>(isa: Isa, $($argument: $type),*) {
            assert!(isa <= Isa::best(), "this processor has no {isa}");
            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `Isa` names a class only where the processor was found to have it.
                Isa::Avx512 => unsafe { $avx512($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `Isa` names a class only where the processor was found to have it.
                Isa::Avx2 => unsafe { $avx2($($argument),*) },
                _ => $body($($argument),*),
            }
        }
    };
}

classes!(
    /// Computes `out = a (+) b`, element by element.
    combine, combine_avx2, combine_avx512, combine_lanes,
    (op: ReduceOp, out: &mut [T], a: &[T], b: &[T])
);
classes!(
    /// Computes `into = into (+) from`, element by element.
    reduce, reduce_avx2, reduce_avx512, reduce_lanes,
    (op: ReduceOp, into: &mut [T], from: &[T])
);
classes!(
    /// Computes `a = b = a (+) b`, element by element.
    join, join_avx2, join_avx512, join_lanes,
    (op: ReduceOp, a: &mut [T], b: &mut [T])
);
classes!(
    /// Computes `into = into / parts`, element by element.
    divide, divide_avx2, divide_avx512, T::divide,
    (into: &mut [T], parts: u32)
);
