//! The backward pass of convolutions: the gradients of weight, input and bias.

use super::Conv2dShape;
use super::transpose::{pad, transpose_parallel};
use super::winograd::Winograd;
use crate::nn::Float;
use crate::nn::gemm::{Left, Lines, Patches, Place, Right, Walk, gemm};
use crate::nn::sum::sum;
use crate::nn::thread_pool::share_rows;

impl Conv2dShape {
    /// Replaces `dw` by the gradient of the weight; `work` is the buffer that the forward pass has filled.
    pub fn backward_params<F: Float>(&self, n: usize, x: &[F], work: &mut [F], dy: &[F], dw: &mut [F]) {
        let (patch, pixels, outputs) = (self.patch(), self.pixels(), self.outputs / self.groups);
        self.lengths(n, x, dy, dw, work);
        if n == 0 {
            return dw.fill(F::ZERO);
        }
        if let Some(winograd) = Winograd::of(self) {
            return winograd.backward_params(x, dy, dw);
        }
        let (height, width) = self.padded_picture();
        let (padded, rest) = work.split_at_mut(n * self.padded());
        let (x, transposed) = (if self.padding == 0 { x } else { padded }, &mut rest[..outputs * patch]);
        let (rows, cols) = self.output_picture();
        for group in 0..self.groups {
            let left = Left {
                data: &x[group * self.inputs / self.groups * height * width..],
                rows: Walk {
                    counts: [self.inputs / self.groups, self.kernel, self.kernel],
                    steps: [height * width, width, 1],
                },
                walk: Walk {
                    counts: [n, rows, cols],
                    steps: [self.padded(), self.stride * width, self.stride],
                },
            };
            let dy = Lines {
                data: &dy[group * outputs * pixels..],
                k_step: 1,
                j_step: pixels,
                plane: pixels,
                sample: self.outputs * pixels,
            };
            gemm((patch, outputs), left, Right::Lines(dy), (transposed, Place::matrix(outputs)), false);
            let dw = &mut dw[group * outputs * patch..(group + 1) * outputs * patch];
            transpose_parallel(transposed, outputs, dw);
        }
    }

    /// Replaces `dx` by the gradient of the input. `work` is the buffer that the forward pass has filled, and is overwritten.
    pub fn backward_input<F: Float>(&self, n: usize, w: &[F], dy: &[F], work: &mut [F], dx: &mut [F]) {
        self.lengths(n, dx, dy, w, work);
        if n == 0 {
            return;
        }
        if let Some(winograd) = Winograd::of(self) {
            return winograd.backward_input(dy, &work[..winograd.weights()], dx);
        }
        match self.transposed() {
            Some((padding, picture)) => self.backward_turned(n, w, dy, work, dx, padding, picture),
            None => self.backward_patches(n, w, dy, work, dx),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "a part of backward_input")]
    fn backward_turned<F: Float>(
        &self,
        n: usize,
        w: &[F],
        dy: &[F],
        work: &mut [F],
        dx: &mut [F],
        padding: usize,
        picture: (usize, usize),
    ) {
        let (transposed, rest) = work.split_at_mut(self.weights());
        self.turn_weight(w, transposed);
        let back = Conv2dShape { inputs: self.outputs, outputs: self.inputs, picture, padding: 0, ..*self };
        let dy = if padding == 0 {
            dy
        } else {
            let padded = &mut rest[..n * back.input()];
            pad(dy, self.output_picture(), padding, padded);
            padded
        };
        // Always by patches, never by Winograd's products: `work` has no space for another transformed weight.
        back.products(n, dy, transposed, dx);
    }

    /// Transposes and flips the weight, group by group: `transposed[c][o][flipped kernel] = w[o][c][kernel]`.
    fn turn_weight<F: Float>(&self, w: &[F], transposed: &mut [F]) {
        let (inputs, outputs, area) =
            (self.inputs / self.groups, self.outputs / self.groups, self.kernel * self.kernel);
        share_rows(transposed, outputs * area, |channels, transposed| {
            for (c, transposed) in channels.zip(transposed.chunks_exact_mut(outputs * area)) {
                let (group, c) = (c / inputs, c % inputs);
                for (o, to) in transposed.chunks_exact_mut(area).enumerate() {
                    let from = &w[((group * outputs + o) * inputs + c) * area..][..area];
                    to.iter_mut().zip(from.iter().rev()).for_each(|(to, &from)| *to = from);
                }
            }
        });
    }

    fn backward_patches<F: Float>(&self, n: usize, w: &[F], dy: &[F], work: &mut [F], dx: &mut [F]) {
        let (patch, pixels, outputs) = (self.patch(), self.pixels(), self.outputs / self.groups);
        let (height, width) = self.output_picture();
        let inputs = self.inputs / self.groups;
        let plane = self.picture.0 * self.picture.1;
        for group in 0..self.groups {
            let left = Left {
                data: &w[group * outputs * patch..(group + 1) * outputs * patch],
                rows: Walk::straight(patch, 1),
                walk: Walk::straight(outputs, patch),
            };
            let dy = Patches {
                data: &dy[group * outputs * pixels..],
                sample: self.outputs * pixels,
                height,
                width,
                kernel: 1,
                stride: 1,
                output: (height, width),
            };
            let columns = &mut work[..patch * n * pixels];
            gemm((patch, n * pixels), left, Right::Patches(dy), (columns, Place::matrix(n * pixels)), false);
            let columns = &*columns;
            share_rows(dx, self.inputs * plane, |samples, dx| {
                for (sample, dx) in samples.zip(dx.chunks_exact_mut(self.inputs * plane)) {
                    for c in 0..inputs {
                        let at = c * self.kernel * self.kernel * n * pixels + sample * pixels;
                        let dx = &mut dx[(group * inputs + c) * plane..][..plane];
                        self.fold(&columns[at..], n * pixels, dx);
                    }
                }
            });
        }
    }

    /// Replaces each pixel of one channel and sample by the sum of the column elements that came from it, in a fixed order; columns
    /// of neighbouring kernel positions are `step` elements apart.
    fn fold<F: Float>(&self, columns: &[F], step: usize, dx: &mut [F]) {
        let ((height, width), (rows, cols)) = (self.picture, self.output_picture());
        let (stride, padding) = (self.stride, self.padding);
        dx.fill(F::ZERO);
        for (at, (i, j)) in (0..self.kernel).flat_map(|i| (0..self.kernel).map(move |j| (i, j))).enumerate() {
            let from = padding.saturating_sub(j).div_ceil(stride).min(cols);
            let to = (width + padding).saturating_sub(j).div_ceil(stride).clamp(from, cols);
            for p in 0..rows {
                let Some(y) = (p * stride + i).checked_sub(padding).filter(|&y| y < height && from < to)
                else {
                    continue;
                };
                let column = &columns[at * step + p * cols..][from..to];
                let row = &mut dx[y * width + from * stride + j - padding..];
                column.iter().zip(row.iter_mut().step_by(stride)).for_each(|(&part, dx)| *dx += part);
            }
        }
    }

    /// Replaces `db` by the gradient of the bias: the sum of `dy` over samples and pixels.
    pub fn backward_bias<F: Float>(&self, dy: &[F], db: &mut [F]) {
        let pixels = self.pixels();
        for (o, db) in db.iter_mut().enumerate() {
            let planes = dy.chunks_exact(pixels).skip(o).step_by(self.outputs);
            *db = F::from_f64(planes.map(|plane| sum(plane, |dy| dy)).sum());
        }
    }
}
