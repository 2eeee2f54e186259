//! Arithmetic on buffers: reductions, layers ([`nn`]) and collectives in shared memory ([`fused`]). Backends
//! of collectives use the same reductions, and so give the same bits. The crate opens no sockets.
//!
//! ```
//! use allfold_kernels::{ReduceOp, bf16, reduce};
//!
//! // bf16 is computed in f32 and rounded once.
//! let mut sum = [1.5, -2.0].map(bf16::from_f32);
//! reduce(ReduceOp::Sum, &mut sum, &[0.5, 2.0].map(bf16::from_f32));
//! assert_eq!(sum.map(f32::from), [2.0, 0.0]);
//! ```

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
