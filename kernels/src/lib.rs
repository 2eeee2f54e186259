//! Arithmetic on buffers: reductions, layers, GPU kernels and exchanges in shared memory. This crate knows nothing of ranks.

#[cfg(feature = "cuda")]
pub mod cuda;
mod element;
pub mod fused;
mod isa;
pub mod nn;
mod op;
mod part;
mod reduce;
mod ticks;

pub use element::{DType, Element};
pub use half::{bf16, f16};
pub use isa::Isa;
pub use op::ReduceOp;
pub use part::SplitVec;
pub use reduce::{
    combine, combine_by, copy_large, copy_part, divide, divide_bytes, reduce, reduce_by, reduce_bytes,
};
pub use ticks::ticks;
