//! A hash of a model's bits.

use crate::Model;
use allfold_kernels::nn::Float;
use allfold_sim::fnv1a;

/// The hash of all parameters and buffers, bit by bit.
pub fn weights<F: Float>(model: &Model<F>) -> u64 {
    let parts: [&[u8]; 2] = [bytemuck::cast_slice(&model.params), bytemuck::cast_slice(&model.buffers)];
    fnv1a(&parts.concat())
}
