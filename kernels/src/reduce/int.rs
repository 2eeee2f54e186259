//! Reductions of integers: wrapping sums and products, ordinary minimum and maximum, division towards zero.

use super::arithmetic::Arithmetic;

macro_rules! int {
    ($($int:ty as $wide:ty),*) => {$(
        impl Arithmetic for $int {
            #[inline(always)]
            fn sum(a: $int, b: $int) -> $int {
                a.wrapping_add(b)
            }

            #[inline(always)]
            fn prod(a: $int, b: $int) -> $int {
                a.wrapping_mul(b)
            }

            #[inline(always)]
            fn min(a: $int, b: $int) -> $int {
                Ord::min(a, b)
            }

            #[inline(always)]
            fn max(a: $int, b: $int) -> $int {
                Ord::max(a, b)
            }

            // Divided in a wider type, since `parts` need not fit the type; the quotient always does. Up to 32 bits the wider type is
            // f64, which vectorises and is exact: a quotient that is no integer differs from any integer by more than f64's rounding.
            #[inline(always)]
            fn divide(into: &mut [$int], parts: u32) {
                let parts = <$wide>::from(parts);
                into.iter_mut().for_each(|a| *a = (<$wide>::from(*a) / parts) as $int);
            }
        }
    )*};
}

int!(i8 as f64, i16 as f64, i32 as f64, i64 as i64, u8 as f64);
