//! The arithmetic of neural networks, as plain functions over buffers.
//!
//! Each file is one operation: its forward pass, its backward pass, and what both cost. Buffers are row-major
//! slices whose shapes are in the legend on top of the file:
//!
//! ```text
//! N  samples of the batch        C, O  channels in, out          H x W  a picture, P x Q  the picture after
//! x  input   y  output           dx, dy  the loss's gradient by them    w, b  weight and bias
//! ```
//!
//! Nothing here starts a thread, and every sum has one fixed order, so on one class of instruction set a result
//! is a function of its inputs alone. A slice of the wrong length is the caller's bug and panics.
//!
//! Every operation has a [`Cost`] that follows from its shapes, for the time model of a device.

mod batch_norm;
mod conv;
mod cost;
mod float;
mod linear;
mod loss;
mod matmul;
mod pool;
mod relu;
mod sum;

#[cfg(test)]
mod gradcheck;

pub use batch_norm::BatchNorm;
pub use conv::Conv2d;
pub use cost::Cost;
pub use float::Float;
pub use linear::Linear;
pub use loss::CrossEntropy;
pub use matmul::{Matrix, Store, matmul};
pub use pool::Pool;
pub use relu::Relu;
pub use sum::norm;
