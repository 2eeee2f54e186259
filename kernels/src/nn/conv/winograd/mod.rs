//! Convolution by a 3 x 3 kernel with stride 1, after S. Winograd: the kernel, and the 4 x 4 pixels under 2 x 2 outputs, are
//! transformed so that 16 multiplications replace 36 (A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks",
//! CVPR 2016).
//!
//! ```text
//! forward    pixels d [4 x 4]      V = B' d B                M[p] = V[p] . U[p]  for each of 16 places p     y = A' M A
//!            kernel g [3 x 3]      U = G g G'
//! weights    Z = A dy A'           P[p] = V[p]^T . Z[p]                                                      dg = G' P G
//! input      V of dy, and U of the flipped kernel: U with its first and last rows, and columns, exchanged
//!
//!      | 1  0 -1  0 |          | 1   0   0  |
//! B' = | 0  1  1  0 |      G = | 1/2 1/2 1/2|      A' = | 1  1  1  0 |
//!      | 0 -1  1  0 |          | 1/2-1/2 1/2|           | 0  1 -1 -1 |
//!      | 0  1  0 -1 |          | 0   0   1  |
//! ```
//!
//! Pixels are transposed to channel-last first, so that a transform works on whole vectors of channels whatever the picture's size.
//! All steps are applied to one block of tiles while the block is in the cache.
//!
//! The sum of an element does not depend on how a batch is cut into blocks or shared between threads: tiles are independent in the
//! forward pass, and the blocks of the weight's gradient follow from the shape alone.

mod pictures;
#[cfg(test)]
mod tests;
mod transforms;

use super::Conv2dShape;
use super::transpose::transpose_parallel;
use crate::nn::Float;
use crate::nn::gemm::{Left, Lines, Place, Right, Walk, gemm, transpose, with_thread_scratch};
use crate::nn::thread_pool::{share, share_rows, threads};
use pictures::Pictures;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use transforms::{VECTOR, gradients, kernels};

/// The number of places of a transformed tile, 4 x 4.
const ELEMENTS: usize = 16;
/// The least number of input and of output channels for which Winograd's products are faster.
const LEAST: usize = 64;
/// The least side of an output picture: for smaller pictures the transform of the weight is most of the work.
const SIDE: usize = 4;
/// The most elements at one of the 16 places of a block's tiles, input and output together, unless that is less than 64 tiles.
const BLOCK: usize = 1 << 18;

/// A convolution by Winograd's products: how input and output are cut into tiles.
#[derive(Clone, Copy)]
pub(in crate::nn::conv) struct Winograd {
    inputs: Pictures,
    outputs: Pictures,
}

impl Winograd {
    /// Winograd's products for a convolution, or `None` where they are not faster or not possible.
    pub fn of(shape: &Conv2dShape) -> Option<Winograd> {
        let Conv2dShape { inputs, outputs, picture, kernel, stride, padding, groups } = *shape;
        let pays = |channels: usize| channels >= LEAST && channels.is_multiple_of(VECTOR);
        if (kernel, stride, groups) != (3, 1, 1) || padding > 2 || !pays(inputs) || !pays(outputs) {
            return None;
        }
        let (rows, cols) = shape.output_picture();
        if rows.min(cols) < SIDE {
            return None;
        }
        let tiles = (rows.div_ceil(2), cols.div_ceil(2));
        Some(Winograd {
            inputs: Pictures { channels: inputs, picture, before: padding, tiles },
            outputs: Pictures { channels: outputs, picture: (rows, cols), before: 0, tiles },
        })
    }

    /// The number of elements of the transformed weight.
    pub fn weights(&self) -> usize {
        ELEMENTS * self.inputs.channels * self.outputs.channels
    }

    /// Transforms the weight `w` into `u[element][c][o]`.
    pub fn transform<F: Float>(&self, w: &[F], u: &mut [F]) {
        let (c, o) = (self.inputs.channels, self.outputs.channels);
        let parts = threads().min(c);
        let cut = |part: usize| c * part / parts;
        let mut planes: Vec<&mut [F]> = u.chunks_exact_mut(c * o).collect();
        let piece = |part: usize| {
            let length = (cut(part + 1) - cut(part)) * o;
            let heads = planes.iter_mut().map(|plane| plane.split_off_mut(..length).unwrap_or_default());
            Mutex::new(heads.collect::<Vec<_>>())
        };
        let pieces: Vec<_> = (0..parts).map(piece).collect();
        with_thread_scratch(w.len(), |transposed| {
            transpose_parallel(w, 9 * c, transposed);
            share(parts, |part| {
                let mut piece = pieces[part].lock().unwrap_or_else(PoisonError::into_inner);
                kernels(&transposed[cut(part) * 9 * o..cut(part + 1) * 9 * o], o, &mut piece);
            });
        });
    }

    /// Computes `y` from `x` with the transformed weight `u`.
    pub fn forward<F: Float>(&self, x: &[F], u: &[F], y: &mut [F]) {
        let (c, o) = (self.inputs.channels, self.outputs.channels);
        let right = |element: usize| Lines::matrix(&u[element * c * o..(element + 1) * c * o], o);
        convolve(self.inputs, self.outputs, x, right, y);
    }

    /// Computes the gradient `dx` of the input with the transformed weight `u` of the forward pass.
    pub fn backward_input<F: Float>(&self, dy: &[F], u: &[F], dx: &mut [F]) {
        let (c, o) = (self.inputs.channels, self.outputs.channels);
        let padding = 2 - self.inputs.before;
        let tiles = (self.inputs.picture.0.div_ceil(2), self.inputs.picture.1.div_ceil(2));
        let from = Pictures { before: padding, tiles, ..self.outputs };
        let to = Pictures { before: 0, tiles, ..self.inputs };
        let right = |element: usize| Lines::transposed(&u[flipped(element) * c * o..][..c * o], o);
        convolve(from, to, dy, right, dx);
    }

    /// Replaces `dw` by the gradient of the weight.
    pub fn backward_params<F: Float>(&self, x: &[F], dy: &[F], dw: &mut [F]) {
        let o = self.outputs.channels;
        with_thread_scratch(dw.len(), |transposed| {
            // Each thread has some channels of the input, and transforms all channels of the output itself.
            share_rows(transposed, VECTOR * 9 * o, |vectors, transposed| {
                let channels = vectors.start * VECTOR..vectors.end * VECTOR;
                let plane = channels.len() * o;
                with_thread_scratch(ELEMENTS * plane, |p| {
                    self.weight_sums((x, channels), dy, p);
                    gradients(p, plane, o, transposed);
                });
            });
            transpose_parallel(transposed, o, dw);
        });
    }

    /// Computes `p[element][c][o]` for some channels c: sums over all tiles, block by block.
    fn weight_sums<F: Float>(&self, (x, channels): (&[F], Range<usize>), dy: &[F], p: &mut [F]) {
        let (all, c, o) = (self.inputs.channels, channels.len(), self.outputs.channels);
        let from = Pictures { channels: c, ..self.inputs };
        let (pixels, out_pixels, each) = (from.pixels(), self.outputs.pixels(), from.each());
        let n = dy.len() / (o * out_pixels);
        // Blocks follow from the shape alone, and therefore so does the order of additions.
        let (samples, most) = block(each, all + o);
        let sizes = [samples * pixels * c + c, samples * out_pixels * o + o, ELEMENTS * most * c];
        with_thread_scratch(sizes.iter().sum::<usize>() + ELEMENTS * most * o, |scratch| {
            let (xs, scratch) = scratch.split_at_mut(sizes[0]);
            let (ys, scratch) = scratch.split_at_mut(sizes[1]);
            let (v, z) = scratch.split_at_mut(sizes[2]);
            for first in (0..n).step_by(samples) {
                let count = samples.min(n - first);
                let xs = transposed(&x[first * all * pixels..], (all, channels.clone()), pixels, count, xs);
                let ys = transposed(&dy[first * o * out_pixels..], (o, 0..o), out_pixels, count, ys);
                for start in (0..count * each).step_by(most) {
                    let tiles = most.min(count * each - start);
                    from.transformed(xs, start, tiles, v);
                    self.outputs.spread(ys, start, tiles, z);
                    for element in 0..ELEMENTS {
                        let left = Left {
                            data: &v[element * tiles * c..(element + 1) * tiles * c],
                            rows: Walk::straight(c, 1),
                            walk: Walk::straight(tiles, c),
                        };
                        let right = Lines::matrix(&z[element * tiles * o..(element + 1) * tiles * o], o);
                        let out = &mut p[element * c * o..(element + 1) * c * o];
                        gemm((c, o), left, Right::Lines(right), (out, Place::matrix(o)), first + start > 0);
                    }
                }
            }
        });
    }
}

/// The channels `channels` of the first `count` pictures of `x`, which has `all` channels, as channel-last; then a pixel of zeros.
fn transposed<'r, F: Float>(
    x: &[F],
    (all, channels): (usize, Range<usize>),
    pixels: usize,
    count: usize,
    to: &'r mut [F],
) -> &'r [F] {
    let c = channels.len();
    for (sample, to) in to.chunks_exact_mut(pixels * c).take(count).enumerate() {
        transpose(&x[(sample * all + channels.start) * pixels..], (pixels, c), pixels, to, c);
    }
    to[count * pixels * c..][..c].fill(F::ZERO);
    &to[..(count * pixels + 1) * c]
}

/// The index in the unflipped 4 x 4 kernel of an index in the flipped one: rows 0 and 3, and columns 0 and 3, are exchanged.
fn flipped(element: usize) -> usize {
    let flip = |at: usize| if at.is_multiple_of(3) { 3 - at } else { at };
    4 * flip(element / 4) + flip(element % 4)
}

/// (Samples, tiles) of a block, if a sample has `each` tiles and a tile has `channels` input and output channels together.
fn block(each: usize, channels: usize) -> (usize, usize) {
    let tiles = (BLOCK / channels / 8 * 8).clamp(64, 256);
    (tiles.div_ceil(each), tiles)
}

/// Convolves every picture of `x`; `right(element)` is that element of the transformed weight, one line per channel of `x`.
fn convolve<'a, F: Float>(
    from: Pictures,
    to: Pictures,
    x: &[F],
    right: impl Fn(usize) -> Lines<'a, F> + Sync,
    y: &mut [F],
) {
    let (c, o, each) = (from.channels, to.channels, from.each());
    let (pixels, out_pixels) = (from.pixels(), to.pixels());
    let n = y.len() / (o * out_pixels);
    let (samples, most) = block(each, c + o);
    let samples = samples.min(n.div_ceil(threads()));
    let most = most.min(samples * each);
    let sizes = [samples * pixels * c + c, samples * out_pixels * o, ELEMENTS * most * c];
    share_rows(y, o * out_pixels, |range, y| {
        with_thread_scratch(sizes.iter().sum::<usize>() + ELEMENTS * most * o, |scratch| {
            let (xs, scratch) = scratch.split_at_mut(sizes[0]);
            let (ys, scratch) = scratch.split_at_mut(sizes[1]);
            let (v, m) = scratch.split_at_mut(sizes[2]);
            for (first, y) in range.step_by(samples).zip(y.chunks_mut(samples * o * out_pixels)) {
                let count = y.len() / (o * out_pixels);
                let xs = transposed(&x[first * c * pixels..], (c, 0..c), pixels, count, xs);
                for start in (0..count * each).step_by(most) {
                    let tiles = most.min(count * each - start);
                    from.transformed(xs, start, tiles, v);
                    for element in 0..ELEMENTS {
                        let left = Left {
                            data: &v[element * tiles * c..(element + 1) * tiles * c],
                            rows: Walk::straight(tiles, c),
                            walk: Walk::straight(c, 1),
                        };
                        let out = &mut m[element * tiles * o..(element + 1) * tiles * o];
                        gemm((tiles, o), left, Right::Lines(right(element)), (out, Place::matrix(o)), false);
                    }
                    to.gathered(m, start, tiles, ys);
                }
                for (sample, y) in y.chunks_exact_mut(o * out_pixels).enumerate() {
                    transpose(&ys[sample * out_pixels * o..], (o, out_pixels), o, y, out_pixels);
                }
            }
        });
    });
}
