//! Gradients of layers against central differences, and values of layers that are known in closed form.
#![allow(missing_docs, clippy::unwrap_used)]

mod batch_norm;
mod embedding;
mod gelu;
mod gradcheck;
mod layer_norm;
mod linear;
mod loss;
mod pool;
mod relu;
mod tanh;
