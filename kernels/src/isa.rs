//! The choice of vector instructions: the widest class that the processor has, or a narrower class that the user requests.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// A class of vector instructions. Reductions give the same bits in all classes; layers and products give the same bits in all
/// classes that fuse multiply and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The instructions that every processor of the compilation target has.
    Baseline,
    /// AVX2, fused multiply-add, and F16C for conversions.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    const ALL: [Isa; 3] = [Isa::Baseline, Isa::Avx2, Isa::Avx512];

    /// The classes that this process may use, the widest last.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| *isa <= Isa::best())
    }

    /// The widest class that this processor has, or the class that `ALLFOLD_SIMD` names if that is narrower: `baseline`, `avx2` or
    /// `avx512`. Any other value is reported once on standard error and ignored.
    #[inline]
    pub fn best() -> Isa {
        /// The best instruction class plus one; 0 until it has been detected.
        static BEST: AtomicU8 = AtomicU8::new(0);
        match BEST.load(Ordering::Relaxed) {
            1 => Isa::Baseline,
            2 => Isa::Avx2,
            3 => Isa::Avx512,
            _ => {
                let best = Isa::detect().min(Isa::asked());
                BEST.store(best as u8 + 1, Ordering::Relaxed);
                best
            }
        }
    }

    #[cold]
    fn asked() -> Isa {
        let Ok(text) = std::env::var("ALLFOLD_SIMD") else { return Isa::Avx512 };
        Isa::named(&text).unwrap_or_else(|| {
            eprintln!("ALLFOLD_SIMD={text} is ignored: it must be baseline, avx2 or avx512");
            Isa::Avx512
        })
    }

    fn named(text: &str) -> Option<Isa> {
        match text {
            "baseline" => Some(Isa::Baseline),
            "avx2" => Some(Isa::Avx2),
            "avx512" => Some(Isa::Avx512),
            _ => None,
        }
    }

    #[cold]
    fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requested_class_is_never_exceeded() {
        let most = std::env::var("ALLFOLD_SIMD").ok().and_then(|text| Isa::named(&text));
        assert!(Isa::best() <= Isa::detect().min(most.unwrap_or(Isa::Avx512)));
        assert_eq!(Isa::available().last(), Some(Isa::best()));
        assert_eq!(Isa::named("AVX-512"), None);
    }
}
