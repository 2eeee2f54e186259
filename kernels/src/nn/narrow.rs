//! Rounding to half precision: the rounding that autocast applies to the operands and results of an operation.
//!
//! ```text
//! f16    10 bits of fraction, 2^-14 .. 65504; below: multiples of 2^-24; above: infinity
//! bf16    7 bits of fraction, the range of f32
//! ```
//!
//! Rounded values stay in the type that operations compute in, so that sums inside an operation are as wide as on hardware that
//! accumulates in f32. Rounding is to nearest, ties to even (IEEE 754).

use super::Float;
use super::simd::vectorised;
use super::thread_pool::share_rows;

/// A 16-bit floating-point type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// 16-bit floating point (IEEE 754 binary16).
    F16,
    /// bfloat16: the upper half of an f32.
    Bf16,
}

impl Narrow {
    /// Rounds every element of `x` to the nearest value of this type; an f64 is rounded to f32 first.
    pub fn round<F: Float>(self, x: &mut [F]) {
        share_rows(x, 1, |_, x| match self {
            Narrow::F16 => f16(x),
            Narrow::Bf16 => bf16(x),
        });
    }
}

vectorised! {
    fn f16<F>(x: &mut [F]) {
        match bytemuck::try_cast_slice_mut::<F, f32>(x) {
            Ok(x) if size_of::<F>() == size_of::<f32>() => x.iter_mut().for_each(|x| *x = to_f16(*x)),
            _ => x.iter_mut().for_each(|x| *x = F::from_f64(f64::from(to_f16(x.to_f64() as f32)))),
        }
    }

    fn bf16<F>(x: &mut [F]) {
        match bytemuck::try_cast_slice_mut::<F, f32>(x) {
            Ok(x) if size_of::<F>() == size_of::<f32>() => x.iter_mut().for_each(|x| *x = to_bf16(*x)),
            _ => x.iter_mut().for_each(|x| *x = F::from_f64(f64::from(to_bf16(x.to_f64() as f32)))),
        }
    }
}

#[inline(always)]
fn to_f16(x: f32) -> f32 {
    let bits = x.to_bits();
    let (sign, size) = (bits & 0x8000_0000, bits & 0x7fff_ffff);
    let normal = (size + 0xfff + (size >> 13 & 1)) & !0x1fff;
    // Between 0.5 and 1 the last place of an f32 is 2^-24, f16's smallest step: adding 0.5 rounds to that step.
    let small = ((f32::from_bits(size) + 0.5) - 0.5).to_bits();
    let rounded = if size < 0x3880_0000 { small } else { normal };
    let bounded = if rounded > 0x477f_e000 { 0x7f80_0000 } else { rounded };
    let result = if size > 0x7f80_0000 { size } else { bounded };
    f32::from_bits(result | sign)
}

#[inline(always)]
fn to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { bits } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_what_lies_between_rounds_as_the_half_crate_does() {
        let close = (0..=u16::MAX).flat_map(|bits| {
            let x = half::f16::from_bits(bits).to_f32().to_bits();
            [-4097i32, -4096, -4095, -1, 0, 1, 4095, 4096, 4097]
                .map(|by| f32::from_bits(x.wrapping_add_signed(by)))
        });
        let tiny = (0..20_000).map(|i| i as f32 * 1.3e-9);
        for x in close.chain(tiny).chain([65504.0, 65519.0, 65520.0, f32::MAX, f32::INFINITY, -0.0]) {
            let (got, want) = (to_f16(x), half::f16::from_f32(x).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{x:e}: {got:e} {want:e}"
            );
            let (got, want) = (to_bf16(x), half::bf16::from_f32(x).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{x:e}: {got:e} {want:e}"
            );
        }
    }
}
