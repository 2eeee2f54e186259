//! One body, compiled for several instruction sets, the best of which is chosen when the program runs.
//!
//! ```text
//! vectorised! { fn scale<F>(a: F, x: &mut [F]) { ... } }      wide (AVX-512) | middle (AVX2, FMA) | plain
//! ```
//!
//! The compiler vectorises each copy with what its instruction set has. It never reorders or fuses floating-point
//! operations by itself, so a body without fused operations gives the same bits on all of them.

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
                    // SAFETY: these instructions were detected.
                    $crate::Isa::Avx512 => return unsafe { wide($($arg),*) },
                    // SAFETY: these instructions were detected.
                    $crate::Isa::Avx2 => return unsafe { middle($($arg),*) },
                    $crate::Isa::Baseline => {}
                }
            }
            body($($arg),*)
        }
    )*};
}
pub(crate) use vectorised;
