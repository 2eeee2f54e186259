//! The loops, once for every class of vector instructions, chosen when the program runs.
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

use super::Arithmetic;
use crate::ReduceOp;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
pub(crate) use stream::{copy, copy_apart, fence};
pub use stream::{copy_large, copy_part};

/// A class of vector instructions. What it computes is the same in all of them; how fast differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every processor of this target has.
    Baseline,
    /// AVX2, FMA-free, with the conversions of F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// Every class that this processor has, the widest last.
    pub fn available() -> impl Iterator<Item = Isa> {
        [Isa::Baseline, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| *isa <= Isa::best())
    }

    /// The widest class that this processor has.
    #[inline]
    pub fn best() -> Isa {
        /// One more than the class; 0 until somebody has asked.
        static BEST: AtomicU8 = AtomicU8::new(0);
        match BEST.load(Ordering::Relaxed) {
            1 => Isa::Baseline,
            2 => Isa::Avx2,
            3 => Isa::Avx512,
            _ => {
                let best = Isa::detect();
                BEST.store(best as u8 + 1, Ordering::Relaxed);
                best
            }
        }
    }

    #[cold]
    fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            match (avx2, avx512) {
                (true, true) => return Isa::Avx512,
                (true, false) => return Isa::Avx2,
                _ => {}
            }
        }
        Isa::Baseline
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Baseline => "baseline",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512",
        })
    }
}

/// `out[i] = f(a[i], b[i])`; all three have one length.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "by index it vectorises whatever is inlined into it")]
fn over<T: Copy>(out: &mut [T], a: &[T], b: &[T], f: impl Fn(T, T) -> T) {
    let (a, b) = (&a[..out.len()], &b[..out.len()]);
    for i in 0..out.len() {
        out[i] = f(a[i], b[i]);
    }
}

/// `into[i] = f(into[i], from[i])`; both have one length.
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

/// `a[i] = b[i] = f(a[i], b[i])`; both have one length.
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

/// A function for each class that calls one body, which is inlined and so compiled for that class.
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
                // SAFETY: as above.
                Isa::Avx2 => unsafe { $avx2($($argument),*) },
                _ => $body($($argument),*),
            }
        }
    };
}

classes!(
    /// `out = a (+) b`, element by element.
    combine, combine_avx2, combine_avx512, combine_lanes,
    (op: ReduceOp, out: &mut [T], a: &[T], b: &[T])
);
classes!(
    /// `into = into (+) from`, element by element.
    reduce, reduce_avx2, reduce_avx512, reduce_lanes,
    (op: ReduceOp, into: &mut [T], from: &[T])
);
classes!(
    /// `a = b = a (+) b`, element by element.
    join, join_avx2, join_avx512, join_lanes,
    (op: ReduceOp, a: &mut [T], b: &mut [T])
);
classes!(
    /// `into = into / parts`, element by element.
    divide, divide_avx2, divide_avx512, T::divide,
    (into: &mut [T], parts: u32)
);
