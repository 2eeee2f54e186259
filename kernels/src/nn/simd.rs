//! Functions that are compiled for several instruction sets; the best version is chosen at run time.
//!
//! ```text
//! vectorised! { fn scale<F>(a: F, x: &mut [F]) { ... } }      wide (AVX-512) | middle (AVX2, FMA) | plain
//! ```
//!
//! The compiler vectorises each version with its instruction set. The compiler never reorders or fuses floating-point operations by
//! itself, so a body without fused operations gives the same bits in all versions.

/// Defines a function whose body is compiled once for each [`Isa`](crate::Isa). Its one type parameter is a [`super::Float`].
macro_rules! vectorised {
    ($($(#[$attr:meta])* $vis:vis fn $name:ident<$F:ident>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$attr])*
        #[allow(unsafe_code, clippy::too_many_arguments, reason = "the copies need what was detected")]
        $vis fn $name<$F: $crate::nn::Float>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$F: $crate::nn::Float>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn wide<$F: $crate::nn::Float>($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn middle<$F: $crate::nn::Float>($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                match $crate::Isa::best() {
                    // SAFETY: `Isa::best` has detected these instructions.
                    $crate::Isa::Avx512 => return unsafe { wide($($arg),*) },
                    // SAFETY: `Isa::best` has detected these instructions.
                    $crate::Isa::Avx2 => return unsafe { middle($($arg),*) },
                    $crate::Isa::Baseline => {}
                }
            }
            body($($arg),*)
        }
    )*};
}
pub(crate) use vectorised;
