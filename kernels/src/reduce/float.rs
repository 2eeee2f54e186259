//! f64 and f32: plain IEEE 754 arithmetic, with NaN made canonical. Written so that the loops vectorise.

use super::Arithmetic;
use crate::ReduceOp;

macro_rules! float {
    ($float:ty, $quiet:expr, $divisor:expr) => {
        impl Arithmetic for $float {
            #[inline]
            fn reduce(op: ReduceOp, into: &mut [$float], from: &[$float]) {
                const QUIET: $float = <$float>::from_bits($quiet);
                let canonical = |x: $float| if x.is_nan() { QUIET } else { x };
                let each = into.iter_mut().zip(from);
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => each.for_each(|(a, &b)| *a = canonical(*a + b)),
                    ReduceOp::Prod => each.for_each(|(a, &b)| *a = canonical(*a * b)),
                    // Neither less: equal, so the same bits but for the sign of zero, or a NaN. Of two zeros
                    // the minimum is negative if either is (or), the maximum only if both are (and).
                    ReduceOp::Min => each.for_each(|(a, &b)| {
                        let equal = <$float>::from_bits(a.to_bits() | b.to_bits());
                        let least = if *a < b {
                            *a
                        } else if b < *a {
                            b
                        } else {
                            equal
                        };
                        *a = if a.is_nan() || b.is_nan() { QUIET } else { least };
                    }),
                    ReduceOp::Max => each.for_each(|(a, &b)| {
                        let equal = <$float>::from_bits(a.to_bits() & b.to_bits());
                        let most = if *a > b {
                            *a
                        } else if b > *a {
                            b
                        } else {
                            equal
                        };
                        *a = if a.is_nan() || b.is_nan() { QUIET } else { most };
                    }),
                }
            }

            #[inline]
            fn divide(into: &mut [$float], parts: u32) {
                const QUIET: $float = <$float>::from_bits($quiet);
                let divisor: $float = $divisor(parts);
                into.iter_mut().for_each(|a| {
                    let part = *a / divisor;
                    *a = if part.is_nan() { QUIET } else { part };
                });
            }
        }
    };
}

float!(f64, 0x7ff8_0000_0000_0000, f64::from);
// Exact up to 2^24 parts; beyond that the divisor itself is the nearest f32.
float!(f32, 0x7fc0_0000, |parts: u32| parts as f32);
