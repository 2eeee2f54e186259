//! Arithmetic on buffers. This crate knows buffers and numbers; it has never heard of a rank.

mod element;
pub mod nn;
mod op;

pub use element::{DType, Element};
pub use half::{bf16, f16};
pub use op::ReduceOp;
