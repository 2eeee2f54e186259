//! The two element types that networks are trained in, f32 and f64.

use crate::Element;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// f32 or f64, with the functions that layers need.
pub trait Float:
    Element
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + Default
{
    /// The number 0.
    const ZERO: Self;
    /// The number 1.
    const ONE: Self;
    /// The value of this type that is nearest to `value`.
    fn from_f64(value: f64) -> Self;
    /// The same value as an f64, exactly.
    fn to_f64(self) -> f64;
    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// The exponential function.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// Whether the value is NaN.
    fn is_nan(self) -> bool;
    /// The exponential function for vectorised loops, for values below 88. The error is within 2 units in the last place.
    fn exp_fast(self) -> Self;
    /// The standard normal distribution's integral from `|self|` to infinity, and its density at `self`.
    fn tail(self) -> (Self, Self);
    /// Fused multiply-add: `self * a + b`, rounded once. Slow where the instruction set has no such operation.
    fn mul_add(self, a: Self, b: Self) -> Self;
}

macro_rules! floats {
    ($($float:ident),*) => {$(
        impl Float for $float {
            const ZERO: $float = 0.0;
            const ONE: $float = 1.0;
            #[inline(always)]
            fn from_f64(value: f64) -> $float {
                value as $float
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn sqrt(self) -> $float {
                $float::sqrt(self)
            }
            #[inline(always)]
            fn exp(self) -> $float {
                $float::exp(self)
            }
            #[inline(always)]
            fn ln(self) -> $float {
                $float::ln(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $float::is_nan(self)
            }
            #[inline(always)]
            fn exp_fast(self) -> $float {
                Special::exp_fast(self)
            }
            #[inline(always)]
            fn tail(self) -> ($float, $float) {
                Special::tail(self)
            }
            #[inline(always)]
            fn mul_add(self, a: $float, b: $float) -> $float {
                $float::mul_add(self, a, b)
            }
        }
    )*};
}

/// The functions that f32 and f64 implement differently.
trait Special: Sized {
    fn exp_fast(self) -> Self;
    fn tail(self) -> (Self, Self);
}

impl Special for f64 {
    #[inline]
    fn exp_fast(self) -> f64 {
        self.exp()
    }

    #[inline]
    fn tail(self) -> (f64, f64) {
        let density = (-0.5 * self * self).exp() * (0.5 * std::f64::consts::FRAC_1_PI).sqrt();
        (0.5 * libm::erfc(self.abs() * std::f64::consts::FRAC_1_SQRT_2), density)
    }
}

impl Special for f32 {
    /// 2^n times a polynomial in the remainder, as in S. Moshier's Cephes library. Every term is a fused multiply-add, so the
    /// result has the same bits on all processors; slow on processors without that instruction.
    #[inline(always)]
    fn exp_fast(self) -> f32 {
        // Adding this constant rounds to an integer, which is then in the lowest bits; subtracting it again gives the integer.
        const ROUND: f32 = 12_582_912.0;
        let x = if self < -87.3 { -87.3 } else { self };
        let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
        let whole = shifted - ROUND;
        let r = whole.mul_add(2.121_944_4e-4, whole.mul_add(-0.693_359_4, x));
        let p = r.mul_add(1.987_569_1e-4, 1.398_199_9e-3);
        let p = p.mul_add(r, 8.333_452e-3);
        let p = p.mul_add(r, 4.166_579_6e-2);
        let p = p.mul_add(r, 1.666_666_5e-1);
        let p = p.mul_add(r, 0.5);
        let p = (p * r).mul_add(r, r) + 1.0;
        let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
        let result = p * power;
        let result = if self < -87.3 { 0.0 } else { result };
        if self > 88.3 { f32::INFINITY } else { result }
    }

    /// The approximation 7.1.26 of M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions".
    #[inline(always)]
    fn tail(self) -> (f32, f32) {
        let z = self.abs() * std::f32::consts::FRAC_1_SQRT_2;
        let t = 1.0 / z.mul_add(0.327_591_1, 1.0);
        let p = t.mul_add(1.061_405_4, -1.453_152_1);
        let p = p.mul_add(t, 1.421_413_7);
        let p = p.mul_add(t, -0.284_496_72);
        let p = p.mul_add(t, 0.254_829_6);
        let e = Special::exp_fast(-z * z);
        (0.5 * p * t * e, e * 0.398_942_3)
    }
}

floats!(f32, f64);
