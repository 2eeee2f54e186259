//! Integers: wrapping sums and products, ordinary minimum and maximum, division towards zero.

use super::Arithmetic;
use crate::ReduceOp;

macro_rules! int {
    ($($int:ty as $wide:ty),*) => {$(
        impl Arithmetic for $int {
            #[inline]
            fn reduce(op: ReduceOp, into: &mut [$int], from: &[$int]) {
                let each = into.iter_mut().zip(from);
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => each.for_each(|(a, &b)| *a = a.wrapping_add(b)),
                    ReduceOp::Prod => each.for_each(|(a, &b)| *a = a.wrapping_mul(b)),
                    ReduceOp::Min => each.for_each(|(a, &b)| *a = (*a).min(b)),
                    ReduceOp::Max => each.for_each(|(a, &b)| *a = (*a).max(b)),
                }
            }

            // In a wider type, for the number of parts need not fit the type; the quotient always does. Up to 32 bits
            // f64 is exact: a quotient that is no integer is further from one than f64 rounds, and it vectorises.
            #[inline]
            fn divide(into: &mut [$int], parts: u32) {
                let parts = <$wide>::from(parts);
                into.iter_mut().for_each(|a| *a = (<$wide>::from(*a) / parts) as $int);
            }
        }
    )*};
}

int!(i8 as f64, i16 as f64, i32 as f64, i64 as i64, u8 as f64);
