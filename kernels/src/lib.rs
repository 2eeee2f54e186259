//! Arithmetic on buffers. This crate knows buffers and numbers; it has never heard of a rank.

mod element;
pub mod nn;
mod op;
mod reduce;

pub use element::{DType, Element};
pub use half::{bf16, f16};
pub use op::ReduceOp;
pub use reduce::{combine, divide, divide_bytes, reduce, reduce_bytes};
