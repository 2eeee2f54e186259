//! The element types of buffers.

use crate::reduce::Loops;
use crate::{bf16, f16};
use std::fmt;

allfold_base::named! {
    /// The type of a buffer's elements, named in frames, records and on the command line. The order is that of the numbers on the wire.
    #[derive(Hash)]
    #[repr(u8)]
    pub enum DType {
        /// 64-bit floating point (IEEE 754 binary64).
        F64 = "f64",
        /// 32-bit floating point (IEEE 754 binary32).
        F32 = "f32",
        /// 16-bit floating point (IEEE 754 binary16).
        F16 = "f16",
        /// bfloat16: the upper half of an f32.
        Bf16 = "bf16",
        /// Signed integer of 8 bits.
        I8 = "i8",
        /// Signed integer of 16 bits.
        I16 = "i16",
        /// Signed integer of 32 bits.
        I32 = "i32",
        /// Signed integer of 64 bits.
        I64 = "i64",
        /// Unsigned integer of 8 bits.
        U8 = "u8",
    }
}

/// Calls a function that is generic over the element type, with the type that a [`DType`] value names: `for_dtype!(dtype,
/// function(arguments))`.
#[macro_export]
macro_rules! for_dtype {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            $crate::DType::F64 => $function::<f64>($($argument),*),
            $crate::DType::F32 => $function::<f32>($($argument),*),
            $crate::DType::F16 => $function::<$crate::f16>($($argument),*),
            $crate::DType::Bf16 => $function::<$crate::bf16>($($argument),*),
            $crate::DType::I8 => $function::<i8>($($argument),*),
            $crate::DType::I16 => $function::<i16>($($argument),*),
            $crate::DType::I32 => $function::<i32>($($argument),*),
            $crate::DType::I64 => $function::<i64>($($argument),*),
            $crate::DType::U8 => $function::<u8>($($argument),*),
        }
    };
}

impl DType {
    /// The size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::Bf16 | DType::I16 => 2,
            DType::I8 | DType::U8 => 1,
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// An element type that collectives carry: plain old data with a [`DType`].
pub trait Element:
    bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync + Loops + sealed::Sealed + 'static
{
    /// The [`DType`] of this element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements!(f64 => F64, f32 => F32, f16 => F16, bf16 => Bf16, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8);
