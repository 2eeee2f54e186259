//! Functions that are compiled for several instruction sets; the best version is chosen at run time.
//!
//! ```text
//! vectorised! { fn scale<F>(a: F, x: &mut [F]) { ... } }      wide (AVX-512) | middle (AVX2, FMA) | plain
//! ```
//!
//! The compiler vectorises each version with its instruction set. The compiler never reorders or fuses floating-point operations by
//! itself, so a body without fused operations gives the same bits in all versions.

use std::any::TypeId;
use std::mem::{self, ManuallyDrop};

/// Defines a function whose body is compiled once for each [`Isa`](crate::Isa) and each of f32 and f64, in this crate: a crate that calls
/// a generic function compiles it again, in its own way. The function's one type parameter is a [`super::Float`].
macro_rules! vectorised {
    ($($(#[$attr:meta])* $vis:vis fn $name:ident<$F:ident>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$attr])*
        #[allow(unsafe_code, clippy::too_many_arguments, reason = "the copies need what was detected")]
        #[allow(clippy::assign_op_pattern, reason = "a Float has no *=, and its copies have")]
        #[inline]
        $vis fn $name<$F: $crate::nn::Float>($($arg: $ty),*) $(-> $ret)? {
            use $crate::nn::simd::{is, same};
            if is::<$F, f32>() {
                $crate::nn::simd::vectorised!(@copies f32, $F, ($($arg: $ty),*), ($($ret)?), $body);
                // SAFETY: the types of arguments and result are those of the copy, since the type parameter is f32.
                return unsafe { same(best($(same($arg)),*)) };
            }
            if is::<$F, f64>() {
                $crate::nn::simd::vectorised!(@copies f64, $F, ($($arg: $ty),*), ($($ret)?), $body);
                // SAFETY: as above, with f64.
                return unsafe { same(best($(same($arg)),*)) };
            }
            unreachable!("no type but f32 and f64 is a Float")
        }
    )*};
    (@copies $float:ty, $F:ident, ($($arg:ident: $ty:ty),*), ($($ret:ty)?), $body:block) => {
        type $F = $float;

        #[inline(always)]
        fn body($($arg: $ty),*) $(-> $ret)? $body

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn wide($($arg: $ty),*) $(-> $ret)? {
            body($($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn middle($($arg: $ty),*) $(-> $ret)? {
            body($($arg),*)
        }

        fn best($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            match $crate::Isa::best() {
                // SAFETY: `Isa::best` has detected these instructions.
                $crate::Isa::Avx512 => return unsafe { wide($($arg),*) },
                // SAFETY: `Isa::best` has detected these instructions.
                $crate::Isa::Avx2 => return unsafe { middle($($arg),*) },
                $crate::Isa::Baseline => {}
            }
            body($($arg),*)
        }
    };
}

/// Defines a function that is compiled once for each of f32 and f64, in this crate, as [`vectorised!`] does.
macro_rules! compiled_here {
    ($($(#[$attr:meta])* $vis:vis fn $name:ident<$F:ident>($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$attr])*
        #[allow(unsafe_code, reason = "a generic function cannot say that two of its types are the same")]
        #[inline]
        $vis fn $name<$F: $crate::nn::Float>($($arg: $ty),*) {
            use $crate::nn::simd::{is, same};
            if is::<$F, f32>() {
                type $F = f32;
                fn body($($arg: $ty),*) $body
                // SAFETY: the types of the arguments are those of the copy, since the type parameter is f32.
                return unsafe { body($(same($arg)),*) };
            }
            if is::<$F, f64>() {
                type $F = f64;
                fn body($($arg: $ty),*) $body
                // SAFETY: as above, with f64.
                return unsafe { body($(same($arg)),*) };
            }
            unreachable!("no type but f32 and f64 is a Float")
        }
    )*};
}
pub(crate) use compiled_here;
pub(crate) use vectorised;

/// Whether two types are the same.
#[inline(always)]
pub(crate) fn is<A: 'static, B: 'static>() -> bool {
    TypeId::of::<A>() == TypeId::of::<B>()
}

/// Converts a value between two names of one type.
///
/// # Safety
/// `A` and `B` must be the same type.
#[allow(unsafe_code, reason = "a generic function cannot say that two of its types are the same")]
#[inline(always)]
pub(crate) unsafe fn same<A, B>(value: A) -> B {
    // SAFETY: the types are the same, and the value is forgotten here.
    unsafe { mem::transmute_copy(&ManuallyDrop::new(value)) }
}
