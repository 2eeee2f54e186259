//! The two types that networks are trained in here.

use crate::Element;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// f32 or f64, with the few functions that layers need.
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
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
    /// The same value, exactly.
    fn to_f64(self) -> f64;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// e to this power.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Whether it is not a number.
    fn is_nan(self) -> bool;
}

macro_rules! floats {
    ($($float:ident),*) => {$(
        impl Float for $float {
            const ZERO: $float = 0.0;
            const ONE: $float = 1.0;
            #[inline]
            fn from_f64(value: f64) -> $float {
                value as $float
            }
            #[inline]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline]
            fn sqrt(self) -> $float {
                $float::sqrt(self)
            }
            #[inline]
            fn exp(self) -> $float {
                $float::exp(self)
            }
            #[inline]
            fn ln(self) -> $float {
                $float::ln(self)
            }
            #[inline]
            fn is_nan(self) -> bool {
                $float::is_nan(self)
            }
        }
    )*};
}

floats!(f32, f64);
