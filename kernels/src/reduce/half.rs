//! f16 and bf16: computed in f32 a block at a time and rounded once per operation.
//!
//! Rounding the f32 result again to the narrow type gives what rounding the exact result would: f32 keeps more
//! than twice the narrow significand's bits plus two (24 >= 2 x 11 + 2), so the double rounding is harmless for
//! +, x and / (S. Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30 (1995)).

use super::Arithmetic;
use crate::{ReduceOp, bf16, f16};
use half::slice::HalfFloatSliceExt;

/// Elements widened at a time: three blocks of f32 stay in the first-level cache.
const BLOCK: usize = 1024;

/// A 16-bit float that is widened to f32 and narrowed back, both in bulk.
trait Narrow: Copy {
    fn widen(from: &[Self], into: &mut [f32]);
    fn narrow(from: &[f32], into: &mut [Self]);
}

impl Narrow for f16 {
    fn widen(from: &[f16], into: &mut [f32]) {
        from.convert_to_f32_slice(into);
    }
    fn narrow(from: &[f32], into: &mut [f16]) {
        into.convert_from_f32_slice(from);
    }
}

impl Narrow for bf16 {
    fn widen(from: &[bf16], into: &mut [f32]) {
        into.iter_mut().zip(from).for_each(|(wide, b)| *wide = f32::from_bits(u32::from(b.to_bits()) << 16));
    }
    /// To nearest, ties to even, by adding just under half a unit of what is cut off. NaNs arrive canonical,
    /// and 0x7fc0_0000 cannot carry into the sign.
    fn narrow(from: &[f32], into: &mut [bf16]) {
        into.iter_mut().zip(from).for_each(|(b, wide)| {
            let bits = wide.to_bits();
            let rounded = bits + 0x7fff + (bits >> 16 & 1);
            *b = bf16::from_bits((rounded >> 16) as u16);
        });
    }
}

fn reduce<H: Narrow>(op: ReduceOp, into: &mut [H], from: &[H]) {
    let (mut a, mut b) = ([0f32; BLOCK], [0f32; BLOCK]);
    for (into, from) in into.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
        let (a, b) = (&mut a[..into.len()], &mut b[..into.len()]);
        H::widen(into, a);
        H::widen(from, b);
        f32::reduce(op, a, b);
        H::narrow(a, into);
    }
}

/// The quotient, rounded once: in f64, then to odd in f32, from which narrowing is as from the exact value. (f32 alone
/// rounds twice where the number of parts has more than a dozen bits.)
fn divide<H: Narrow>(into: &mut [H], parts: u32) {
    let mut wide = [0f32; BLOCK];
    for into in into.chunks_mut(BLOCK) {
        let wide = &mut wide[..into.len()];
        H::widen(into, wide);
        wide.iter_mut().for_each(|a| *a = to_odd(f64::from(*a) / f64::from(parts)));
        H::narrow(wide, into);
    }
}

fn to_odd(x: f64) -> f32 {
    let near = x as f32;
    let beyond = f64::from(near).abs() > x.abs();
    let odd = f32::from_bits((near.to_bits().wrapping_sub(u32::from(beyond))) | 1);
    match () {
        () if x.is_nan() => f32::from_bits(0x7fc0_0000),
        () if f64::from(near) == x => near,
        () => odd,
    }
}

macro_rules! narrow {
    ($($half:ty),*) => {$(
        impl Arithmetic for $half {
            fn reduce(op: ReduceOp, into: &mut [$half], from: &[$half]) {
                reduce(op, into, from);
            }
            fn divide(into: &mut [$half], parts: u32) {
                divide(into, parts);
            }
        }
    )*};
}

narrow!(f16, bf16);
