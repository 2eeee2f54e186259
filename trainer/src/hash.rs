//! One number that stands for a model's bits.

use crate::Model;
use allfold_kernels::nn::Float;

/// FNV-1a with 64 bits (G. Fowler, L. C. Noll and K.-P. Vo, 1991): no protection against malice, but every bit counts.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The hash of all parameters and buffers, bit by bit.
pub fn weights<F: Float>(model: &Model<F>) -> u64 {
    let parts: [&[u8]; 2] = [bytemuck::cast_slice(&model.params), bytemuck::cast_slice(&model.buffers)];
    fnv1a(&parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
