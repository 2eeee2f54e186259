//! Reductions of f64 and f32: plain IEEE 754 arithmetic with canonical NaNs, written so that loops vectorise.

use super::arithmetic::Arithmetic;

macro_rules! float {
    ($float:ty, $quiet:expr, $divisor:expr) => {
        impl Arithmetic for $float {
            #[inline(always)]
            fn sum(a: $float, b: $float) -> $float {
                canonical(a + b)
            }

            #[inline(always)]
            fn prod(a: $float, b: $float) -> $float {
                canonical(a * b)
            }

            // If neither of two values is less than the other, they are equal up to the sign of zero, or one is NaN. Of two
            // zeros the minimum is negative if either is negative (bitwise or), and the maximum only if both are (bitwise and).
            #[inline(always)]
            fn min(a: $float, b: $float) -> $float {
                let equal = <$float>::from_bits(a.to_bits() | b.to_bits());
                let least = if a < b { a } else { equal };
                let least = if b < a { b } else { least };
                if a.is_nan() || b.is_nan() { QUIET } else { least }
            }

            #[inline(always)]
            fn max(a: $float, b: $float) -> $float {
                let equal = <$float>::from_bits(a.to_bits() & b.to_bits());
                let most = if a > b { a } else { equal };
                let most = if b > a { b } else { most };
                if a.is_nan() || b.is_nan() { QUIET } else { most }
            }

            #[inline(always)]
            fn divide(into: &mut [$float], parts: u32) {
                let divisor: $float = $divisor(parts);
                into.iter_mut().for_each(|a| *a = canonical(*a / divisor));
            }
        }

        const QUIET: $float = <$float>::from_bits($quiet);

        #[inline(always)]
        fn canonical(x: $float) -> $float {
            if x.is_nan() { QUIET } else { x }
        }
    };
}

mod double {
    use super::Arithmetic;
    float!(f64, 0x7ff8_0000_0000_0000, f64::from);
}

mod single {
    use super::Arithmetic;
    // `parts as f32` is exact up to 2^24; above that the divisor is the f32 nearest to `parts`.
    float!(f32, 0x7fc0_0000, |parts: u32| parts as f32);
}
