//! Convolution of pictures, as one matrix product per sample over unrolled patches (im2col).
//!
//! ```text
//! x [N, C, H, W]     w [O, C, K, K]     y [N, O, P, Q]     P = (H + 2 pad - K) / stride + 1, Q from W alike
//! columns [N, C K K, P Q]: column (p, q) of a sample is the patch under output pixel (p, q), 0 outside
//! y[n]  = w . columns[n]
//! dw    = sum over n of dy[n] . columns[n]^T
//! dx[n] = patches of w^T . dy[n], each pixel's sum over the patches that hold it
//! ```
//!
//! Unrolling: K. Chellapilla, S. Puri and P. Simard, "High Performance Convolutional Neural Networks for Document
//! Processing", 2006. There is no bias: the batch norm that follows has one.

use super::matmul::{Matrix, Store, matmul};
use super::{Cost, Float};

/// The shape of a convolution with a square kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// Channels in, C.
    pub inputs: usize,
    /// Channels out, O.
    pub outputs: usize,
    /// (H, W).
    pub picture: (usize, usize),
    /// K.
    pub kernel: usize,
    /// Pixels from one patch to the next; 1 or more.
    pub stride: usize,
    /// Zeros around the picture, on each side.
    pub padding: usize,
}

impl Conv2d {
    /// (P, Q).
    ///
    /// # Panics
    /// If the kernel is larger than the padded picture.
    pub fn output_picture(&self) -> (usize, usize) {
        let side = |side: usize| {
            let padded = side + 2 * self.padding;
            assert!(
                self.kernel <= padded && self.stride > 0,
                "a {} kernel over {padded} pixels",
                self.kernel
            );
            (padded - self.kernel) / self.stride + 1
        };
        (side(self.picture.0), side(self.picture.1))
    }

    /// Elements of `columns` per sample: C K K P Q.
    pub fn columns(&self) -> usize {
        self.patch() * self.pixels()
    }

    /// `x` to `y`; `columns` keeps the patches for [`Conv2d::backward_params`].
    pub fn forward<F: Float>(&self, n: usize, x: &[F], w: &[F], columns: &mut [F], y: &mut [F]) {
        let (patch, pixels) = (self.patch(), self.pixels());
        self.lengths(n, x, y, columns);
        let samples = x.chunks_exact(self.input()).zip(columns.chunks_exact_mut(patch * pixels));
        for ((x, columns), y) in samples.zip(y.chunks_exact_mut(self.outputs * pixels)) {
            self.unroll(x, columns);
            let columns = Matrix::new(&*columns, patch, pixels);
            matmul(y, Store::Replace, Matrix::new(w, self.outputs, patch), columns);
        }
    }

    /// The gradient of the weight, replaced: summed over samples in order.
    pub fn backward_params<F: Float>(&self, n: usize, columns: &[F], dy: &[F], dw: &mut [F]) {
        let (patch, pixels) = (self.patch(), self.pixels());
        assert_eq!((columns.len(), dy.len()), (n * patch * pixels, n * self.outputs * pixels));
        dw.fill(F::ZERO);
        for (columns, dy) in columns.chunks_exact(patch * pixels).zip(dy.chunks_exact(self.outputs * pixels))
        {
            let columns = Matrix::new(columns, patch, pixels);
            matmul(dw, Store::Add, Matrix::new(dy, self.outputs, pixels), columns.t());
        }
    }

    /// The gradient of the input, replaced. `columns` is overwritten.
    pub fn backward_input<F: Float>(&self, n: usize, w: &[F], dy: &[F], columns: &mut [F], dx: &mut [F]) {
        let (patch, pixels) = (self.patch(), self.pixels());
        self.lengths(n, dx, dy, columns);
        let samples = dx.chunks_exact_mut(self.input()).zip(columns.chunks_exact_mut(patch * pixels));
        for ((dx, columns), dy) in samples.zip(dy.chunks_exact(self.outputs * pixels)) {
            let weight = Matrix::new(w, self.outputs, patch);
            matmul(columns, Store::Replace, weight.t(), Matrix::new(dy, self.outputs, pixels));
            self.fold(columns, dx);
        }
    }

    /// Cost of [`Conv2d::forward`], as one kernel that reads pictures and never stores patches.
    pub fn forward_cost<F: Float>(&self, n: usize) -> Cost {
        let (x, y) = (n * self.input(), n * self.outputs * self.pixels());
        Cost::launch(2 * y * self.patch(), x + y + self.outputs * self.patch(), size_of::<F>())
    }

    /// Cost of [`Conv2d::backward_params`]: the same products.
    pub fn backward_params_cost<F: Float>(&self, n: usize) -> Cost {
        self.forward_cost::<F>(n)
    }

    /// Cost of [`Conv2d::backward_input`]: the same products.
    pub fn backward_input_cost<F: Float>(&self, n: usize) -> Cost {
        self.forward_cost::<F>(n)
    }

    /// C K K.
    fn patch(&self) -> usize {
        self.inputs * self.kernel * self.kernel
    }

    /// P Q.
    fn pixels(&self) -> usize {
        let (p, q) = self.output_picture();
        p * q
    }

    /// C H W.
    fn input(&self) -> usize {
        self.inputs * self.picture.0 * self.picture.1
    }

    fn lengths<F>(&self, n: usize, x: &[F], y: &[F], columns: &[F]) {
        let want = (n * self.input(), n * self.outputs * self.pixels(), n * self.columns());
        assert_eq!((x.len(), y.len(), columns.len()), want, "input, output and columns of {n} samples");
    }

    /// Copies every patch of a sample's `x` into its column.
    fn unroll<F: Float>(&self, x: &[F], columns: &mut [F]) {
        let (_, width) = self.output_picture();
        self.rows(|column, source| {
            let row = &mut columns[column..column + width];
            match source {
                None => row.fill(F::ZERO),
                Some((start, from, to)) => {
                    row[..from].fill(F::ZERO);
                    row[to..].fill(F::ZERO);
                    let pixel = |q: usize| start + q * self.stride - self.padding;
                    if self.stride == 1 {
                        row[from..to].copy_from_slice(&x[pixel(from)..pixel(from) + (to - from)]);
                    } else {
                        (from..to).for_each(|q| row[q] = x[pixel(q)]);
                    }
                }
            }
        });
    }

    /// Adds every column back into the pixels that its patch came from, in a fixed order.
    fn fold<F: Float>(&self, columns: &[F], dx: &mut [F]) {
        dx.fill(F::ZERO);
        self.rows(|column, source| {
            let Some((start, from, to)) = source else { return };
            let pixel = |q: usize| start + q * self.stride - self.padding;
            let column = &columns[column + from..column + to];
            if self.stride == 1 {
                let row = &mut dx[pixel(from)..pixel(from) + column.len()];
                row.iter_mut().zip(column).for_each(|(dx, &part)| *dx += part);
            } else {
                column.iter().zip(from..).for_each(|(&part, q)| dx[pixel(q)] += part);
            }
        });
    }

    /// Calls `each(column, source)` for every row of output pixels of every kernel position: where the row starts
    /// in `columns`, and, unless all of it lies outside the picture, (start, from, to): output pixels from..to
    /// are inside, and pixel q's input is at `start + q * stride - padding`.
    fn rows(&self, mut each: impl FnMut(usize, Option<(usize, usize, usize)>)) {
        let ((height, width), (rows, cols)) = (self.picture, self.output_picture());
        let (stride, padding) = (self.stride, self.padding);
        let mut column = 0;
        for c in 0..self.inputs {
            for (i, j) in (0..self.kernel).flat_map(|i| (0..self.kernel).map(move |j| (i, j))) {
                let from = padding.saturating_sub(j).div_ceil(stride).min(cols);
                let to = (width + padding).saturating_sub(j).div_ceil(stride).clamp(from, cols);
                for p in 0..rows {
                    let inside = (p * stride + i).checked_sub(padding).filter(|&y| y < height && from < to);
                    each(column, inside.map(|y| ((c * height + y) * width + j, from, to)));
                    column += cols;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::gradcheck::{check, dot, numbers};
    use proptest::prelude::*;

    /// The definition, pixel by pixel.
    fn direct(s: &Conv2d, n: usize, x: &[f64], w: &[f64]) -> Vec<f64> {
        let ((h, wd), (p, q), k) = (s.picture, s.output_picture(), s.kernel);
        let mut y = Vec::new();
        for sample in 0..n {
            for o in 0..s.outputs {
                for (r, t) in (0..p).flat_map(|r| (0..q).map(move |t| (r, t))) {
                    let mut sum = 0.0;
                    for (c, i, j) in
                        (0..s.inputs).flat_map(|c| (0..k).flat_map(move |i| (0..k).map(move |j| (c, i, j))))
                    {
                        let (a, b) = (r * s.stride + i, t * s.stride + j);
                        if a >= s.padding && b >= s.padding && a - s.padding < h && b - s.padding < wd {
                            let pixel = ((sample * s.inputs + c) * h + a - s.padding) * wd + b - s.padding;
                            sum += x[pixel] * w[((o * s.inputs + c) * k + i) * k + j];
                        }
                    }
                    y.push(sum);
                }
            }
        }
        y
    }

    fn shapes() -> impl Strategy<Value = Conv2d> {
        (1usize..3, 1usize..4, 1usize..6, 1usize..6, 1usize..4, 1usize..4, 0usize..3)
            .prop_map(|(inputs, outputs, h, w, kernel, stride, padding)| {
                let picture = (h, w);
                Conv2d { inputs, outputs, picture, kernel, stride, padding }
            })
            .prop_filter("the kernel fits", |s| s.kernel <= s.picture.0.min(s.picture.1) + 2 * s.padding)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn equals_the_definition_and_its_gradients(s in shapes(), n in 1usize..3) {
            let x = numbers(n * s.input(), 1);
            let w = numbers(s.outputs * s.patch(), 2);
            let run = |x: &[f64], w: &[f64]| {
                let mut y = vec![0.0; n * s.outputs * s.pixels()];
                let mut columns = vec![7.0; n * s.columns()];
                s.forward(n, x, w, &mut columns, &mut y);
                (y, columns)
            };
            let (y, mut columns) = run(&x, &w);
            let want = direct(&s, n, &x, &w);
            prop_assert!(y.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-12));

            let r = numbers(y.len(), 3);
            let (mut dw, mut dx) = (vec![9.0; w.len()], vec![9.0; x.len()]);
            s.backward_params(n, &columns, &r, &mut dw);
            s.backward_input(n, &w, &r, &mut columns, &mut dx);
            check("x", &x, &dx, |x| dot(&run(x, &w).0, &r));
            check("w", &w, &dw, |w| dot(&run(&x, w).0, &r));
        }
    }

    #[test]
    fn cost_is_two_per_tap() {
        let s = Conv2d { inputs: 16, outputs: 32, picture: (8, 8), kernel: 3, stride: 1, padding: 1 };
        assert_eq!(s.forward_cost::<f32>(10).flops, 10 * 2 * 32 * 64 * 16 * 9);
    }
}
