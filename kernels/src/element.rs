//! The element types that buffers hold.

use crate::reduce::Loops;
use crate::{bf16, f16};
use std::fmt;

/// The type of a buffer's elements, as frames, records and the command line name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DType {
    /// 64-bit IEEE 754.
    F64,
    /// 32-bit IEEE 754.
    F32,
    /// 16-bit IEEE 754.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
}

/// Calls a function that is generic over the element for the type that a value names:
/// `for_dtype!(dtype, function(arguments))`.
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
    /// Every type, in the order of the wire's numbers.
    pub const ALL: [DType; 9] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
    ];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::Bf16 | DType::I16 => 2,
            DType::I8 | DType::U8 => 1,
        }
    }

    /// The lower-case name: `f32`, `bf16`, `u8`, ...
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type that collectives carry: plain old data with a [`DType`].
pub trait Element:
    bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync + Loops + sealed::Sealed + 'static
{
    /// The element type's tag in messages between ranks.
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
