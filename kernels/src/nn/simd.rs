//! One body, compiled for several instruction sets, the best of which is chosen when the program runs.
//!
//! ```text
//! vectorised! { fn scale<F>(a: F, x: &mut [F]) { ... } }      wide (AVX-512) | middle (AVX2, FMA) | plain
//! ```
//!
//! The compiler vectorises each copy with what its instruction set has. It never reorders or fuses floating-point
//! operations by itself, so a body without fused operations gives the same bits on all of them.

/// The instruction sets that there are bodies for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Whatever the compiler's target has.
    Plain,
    /// AVX2 with fused multiply-add.
    Middle,
    /// AVX-512 (F, BW, DQ, VL).
    Wide,
}

/// What this machine has. `ALLFOLD_SIMD=plain` or `middle`, read once, asks for less.
pub fn level() -> Level {
    use std::sync::OnceLock;
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("ALLFOLD_SIMD").as_deref() {
        Ok("plain") => Level::Plain,
        Ok("middle") if detected() != Level::Plain => Level::Middle,
        _ => detected(),
    })
}

#[cfg(target_arch = "x86_64")]
fn detected() -> Level {
    let middle = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let wide = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (middle, wide) {
        (true, true) => Level::Wide,
        (true, false) => Level::Middle,
        _ => Level::Plain,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> Level {
    Level::Plain
}

/// Defines a function whose body is compiled once for each [`Level`]. Its one type parameter is a [`super::Float`].
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
                match $crate::nn::simd::level() {
                    // SAFETY: these instructions were detected.
                    $crate::nn::simd::Level::Wide => return unsafe { wide($($arg),*) },
                    // SAFETY: these instructions were detected.
                    $crate::nn::simd::Level::Middle => return unsafe { middle($($arg),*) },
                    $crate::nn::simd::Level::Plain => {}
                }
            }
            body($($arg),*)
        }
    )*};
}
pub(crate) use vectorised;
