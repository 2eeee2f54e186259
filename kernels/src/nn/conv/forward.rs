//! The forward pass of convolutions: products with patches of padded pictures.

use super::Conv2dShape;
use super::transpose::pad;
use super::winograd::Winograd;
use crate::nn::Float;
use crate::nn::gemm::{Left, Patches, Place, Right, Walk, gemm};
use crate::nn::thread_pool::share_rows;

impl Conv2dShape {
    /// Computes `y` from `x`; `work` receives the padded pictures or the transformed weight, for the backward pass.
    pub fn forward<F: Float>(&self, n: usize, x: &[F], w: &[F], work: &mut [F], y: &mut [F]) {
        self.lengths(n, x, y, w, work);
        if n == 0 {
            return;
        }
        if let Some(winograd) = Winograd::of(self) {
            let u = &mut work[..winograd.weights()];
            winograd.transform(w, u);
            return winograd.forward(x, u, y);
        }
        let x = if self.padding == 0 {
            x
        } else {
            let padded = &mut work[..n * self.padded()];
            pad(x, self.picture, self.padding, padded);
            padded
        };
        self.products(n, x, w, y);
    }

    /// Computes `y` from padded pictures `x`, by products with patches.
    pub(super) fn products<F: Float>(&self, n: usize, x: &[F], w: &[F], y: &mut [F]) {
        let (height, width) = self.padded_picture();
        for group in 0..self.groups {
            let patches = Patches {
                data: &x[group * self.inputs / self.groups * height * width..],
                sample: self.padded(),
                height,
                width,
                kernel: self.kernel,
                stride: self.stride,
                output: self.output_picture(),
            };
            self.product(n, group, w, &patches, y);
        }
    }

    /// Computes `y = w . patches` for one group of channels.
    pub(super) fn product<F: Float>(
        &self,
        n: usize,
        group: usize,
        w: &[F],
        patches: &Patches<F>,
        y: &mut [F],
    ) {
        let (patch, pixels, outputs) = (self.patch(), self.pixels(), self.outputs / self.groups);
        let left = Left {
            data: &w[group * outputs * patch..(group + 1) * outputs * patch],
            rows: Walk::straight(outputs, patch),
            walk: Walk::straight(patch, 1),
        };
        let place = Place {
            base: group * outputs * pixels,
            row: pixels,
            plane: pixels,
            sample: self.outputs * pixels,
        };
        gemm((outputs, n * pixels), left, Right::Patches(*patches), (y, place), false);
    }

    /// Adds `b[o]` to every pixel of output channel o.
    pub fn add_bias<F: Float>(&self, b: &[F], y: &mut [F]) {
        let pixels = self.pixels();
        share_rows(y, pixels, |planes, y| {
            for (plane, y) in planes.zip(y.chunks_exact_mut(pixels)) {
                let b = b[plane % self.outputs];
                y.iter_mut().for_each(|y| *y += b);
            }
        });
    }
}
