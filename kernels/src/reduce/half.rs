//! Reductions of f16 and bf16: computed in f32 and rounded once per operation.
//!
//! Rounding the f32 result again to the narrow type gives the same as rounding the exact result: f32 has more than twice the narrow
//! significand's bits plus two (24 >= 2 x 11 + 2), so the double rounding is harmless for +, x and / (S. Figueroa, "When is double
//! rounding innocuous?", SIGNUM Newsletter 30 (1995)).
//!
//! bf16 is the upper half of an f32, so its conversions are shifts, which vectorise by themselves. f16 has conversion instructions,
//! which are used on a block at a time (`simd/half`).

use super::arithmetic::Arithmetic;
use super::loops::Loops;
use super::simd;
use crate::Isa;
use crate::{ReduceOp, bf16, f16};

/// The number of elements that are divided or joined at a time.
const BLOCK: usize = 1024;

#[inline(always)]
fn wide(b: bf16) -> f32 {
    f32::from_bits(u32::from(b.to_bits()) << 16)
}

/// Rounds to nearest, ties to even, by adding just under half a unit of the bits that are cut off. NaNs arrive canonical, and
/// 0x7fc0_0000 cannot carry into the sign.
#[inline(always)]
fn narrow(wide: f32) -> bf16 {
    let bits = wide.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    bf16::from_bits((rounded >> 16) as u16)
}

macro_rules! lanes {
    ($half:ty, $wide:expr, $narrow:expr, $($op:ident),*) => {$(
        #[inline(always)]
        fn $op(a: $half, b: $half) -> $half {
            $narrow(f32::$op($wide(a), $wide(b)))
        }
    )*};
}

impl Arithmetic for bf16 {
    lanes!(bf16, wide, narrow, sum, prod);

    // Compared in f32: no rounding is needed, and a NaN becomes canonical.
    #[inline(always)]
    fn min(a: bf16, b: bf16) -> bf16 {
        narrow(Arithmetic::min(wide(a), wide(b)))
    }

    #[inline(always)]
    fn max(a: bf16, b: bf16) -> bf16 {
        narrow(Arithmetic::max(wide(a), wide(b)))
    }

    #[inline(always)]
    fn divide(into: &mut [bf16], parts: u32) {
        for into in into.chunks_mut(BLOCK) {
            let mut block = [0f32; BLOCK];
            let block = &mut block[..into.len()];
            block.iter_mut().zip(&*into).for_each(|(w, b)| *w = quotient(wide(*b), parts));
            into.iter_mut().zip(block).for_each(|(b, w)| *b = narrow(*w));
        }
    }
}

impl Arithmetic for f16 {
    lanes!(f16, f16::to_f32_const, f16::from_f32_const, sum, prod);

    #[inline(always)]
    fn min(a: f16, b: f16) -> f16 {
        f16::from_f32_const(Arithmetic::min(a.to_f32_const(), b.to_f32_const()))
    }

    #[inline(always)]
    fn max(a: f16, b: f16) -> f16 {
        f16::from_f32_const(Arithmetic::max(a.to_f32_const(), b.to_f32_const()))
    }

    #[inline(always)]
    fn divide(into: &mut [f16], parts: u32) {
        use half::slice::HalfFloatSliceExt;
        for into in into.chunks_mut(BLOCK) {
            let mut block = [0f32; BLOCK];
            let block = &mut block[..into.len()];
            into.convert_to_f32_slice(block);
            block.iter_mut().for_each(|a| *a = quotient(*a, parts));
            into.convert_from_f32_slice(block);
        }
    }
}

impl Loops for f16 {
    fn combine(isa: Isa, op: ReduceOp, out: &mut [f16], a: &[f16], b: &[f16]) {
        simd::half::combine(isa, op, out, a, b);
    }

    fn join(isa: Isa, op: ReduceOp, a: &mut [f16], b: &mut [f16]) {
        for (a, b) in a.chunks_mut(BLOCK).zip(b.chunks_mut(BLOCK)) {
            simd::half::reduce(isa, op, a, b);
            b.copy_from_slice(a);
        }
    }

    fn reduce(isa: Isa, op: ReduceOp, into: &mut [f16], from: &[f16]) {
        simd::half::reduce(isa, op, into, from);
    }
}

/// The quotient, rounded once: computed in f64, then rounded to odd in f32, so that narrowing gives the same as from the exact
/// value. (A division in f32 alone would round twice where `parts` has more than a dozen bits.)
#[inline(always)]
fn quotient(a: f32, parts: u32) -> f32 {
    let x = f64::from(a) / f64::from(parts);
    let near = x as f32;
    let beyond = f64::from(near).abs() > x.abs();
    let odd = f32::from_bits((near.to_bits().wrapping_sub(u32::from(beyond))) | 1);
    match () {
        () if x.is_nan() => f32::from_bits(0x7fc0_0000),
        () if f64::from(near) == x => near,
        () => odd,
    }
}
