//! The operations of neural networks, as plain functions over buffers.
//!
//! The file of an operation has its forward pass, its backward pass, and the costs of both. Buffers are row-major slices whose
//! shapes are in the legend at the top of the file:
//!
//! ```text
//! N  samples of the batch        C, O  channels in, out          H x W  input picture, P x Q  output picture
//! x  input   y  output           dx, dy  the loss's gradient by them    w, b  weight and bias
//! ```
//!
//! Kernels share their work with the calling thread's [`ThreadPool`], if it has one. Every sum has one fixed order for any number
//! of threads, so on one class of instruction set a result is a function of its inputs alone. A slice of the wrong length is the
//! caller's bug and panics.
//!
//! Every layer and loss has an [`OpCost`] that follows from its shapes, for the time model of a device.

mod add;
mod attention;
mod batch_norm;
mod conv;
mod cost;
mod dropout;
mod embedding;
mod float;
mod gelu;
mod gemm;
mod layer_norm;
mod linear;
mod loss;
mod matmul;
mod narrow;
mod pool;
mod relu;
mod rms_norm;
mod rope;
mod simd;
mod split_loss;
mod sum;
mod swiglu;
mod tanh;
mod thread_pool;
mod update;

#[cfg(test)]
#[path = "../../tests/gradients/gradcheck.rs"]
mod gradcheck;

pub use add::{add, add_cost, add_to};
pub use attention::{AttentionDropout, AttentionShape};
pub use batch_norm::BatchNormShape;
pub use conv::Conv2dShape;
pub use cost::OpCost;
pub use dropout::{DropoutKernel, DropoutStream, SampleDraws};
pub use embedding::EmbeddingShape;
pub use float::Float;
pub use gelu::GeluKernel;
pub use layer_norm::LayerNormShape;
pub use linear::LinearShape;
pub use loss::{Loss, LossKind};
pub use matmul::{Matrix, Store, matmul, matmul_within};
pub use narrow::Narrow;
pub use pool::PoolShape;
pub use relu::ReluKernel;
pub use rms_norm::RmsNormShape;
pub use rope::RopeShape;
pub use split_loss::{ClassReduction, ClassSplit};
pub use sum::norm;
pub use swiglu::SwigluShape;
pub use tanh::TanhKernel;
pub use thread_pool::ThreadPool;
pub use update::{Descent, Moments, adam, descend, divide};
