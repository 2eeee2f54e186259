//! The reduction of one buffer into another, element by element; swapping the two operands does not change a bit.
//!
//! ```text
//! into   a0 a1 a2 ..          into[i] = into[i] (+) from[i], rounded to the element's type
//! from   b0 b1 b2 ..          every NaN result is the canonical quiet NaN, so a (+) b == b (+) a to the bit
//! ```
//!
//! So a result depends on its reduction tree alone, not on which operand was received. Rust never contracts a
//! multiplication and an addition into one operation, so every node of the tree is rounded alike on all machines. The rules for NaN
//! and signed zeros are from IEEE 754-2019, sections 6.2 and 9.6.

mod arithmetic;
mod buffers;
mod bytes;
mod float;
mod half;
mod int;
mod loops;
pub(crate) mod simd;

pub use buffers::{combine, combine_by, divide, reduce, reduce_by};
pub(crate) use bytes::{Typed, dispatch};
pub use bytes::{divide_bytes, reduce_bytes};
pub use loops::Loops;
pub use simd::{copy_large, copy_part};

#[cfg(test)]
mod tests;
