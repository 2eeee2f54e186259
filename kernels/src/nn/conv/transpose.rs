//! Zero padding of pictures, and parallel transposition of matrices.

use crate::nn::Float;
use crate::nn::gemm::transpose;
use crate::nn::thread_pool::share_rows;

/// Copies pictures with a border of `padding` zeros on each side.
pub(super) fn pad<F: Float>(x: &[F], (height, width): (usize, usize), padding: usize, padded: &mut [F]) {
    let (tall, wide) = (height + 2 * padding, width + 2 * padding);
    share_rows(padded, tall * wide, |planes, padded| {
        let x = x[planes.start * height * width..planes.end * height * width].chunks_exact(height * width);
        for (x, padded) in x.zip(padded.chunks_exact_mut(tall * wide)) {
            padded[..padding * wide].fill(F::ZERO);
            padded[(padding + height) * wide..].fill(F::ZERO);
            let rows = padded[padding * wide..].chunks_exact_mut(wide);
            for (row, x) in rows.zip(x.chunks_exact(width)) {
                row[..padding].fill(F::ZERO);
                row[padding..padding + width].copy_from_slice(x);
                row[padding + width..].fill(F::ZERO);
            }
        }
    });
}

/// Transposes `from`, whose rows have `cols` elements.
pub(super) fn transpose_parallel<F: Float>(from: &[F], cols: usize, to: &mut [F]) {
    let rows = from.len() / cols;
    share_rows(to, rows, |range, to| transpose(&from[range.start..], (range.len(), rows), cols, to, rows));
}
