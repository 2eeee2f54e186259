//! Integers: wrapping sums and products, ordinary minimum and maximum, division towards zero.

use super::Arithmetic;
use crate::ReduceOp;

macro_rules! int {
    ($($int:ty),*) => {$(
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

            // In i64, for the number of parts need not fit the type; the quotient always does.
            #[inline]
            fn divide(into: &mut [$int], parts: u32) {
                let parts = i64::from(parts);
                into.iter_mut().for_each(|a| *a = (i64::from(*a) / parts) as $int);
            }
        }
    )*};
}

int!(i8, i16, i32, i64, u8);
