//! Convolution of pictures, as matrix products that gather their patches on the way.
//!
//! ```text
//! x [N, C, H, W]     w [O, C/G, K, K]     y [N, O, P, Q]     P = (H + 2 pad - K) / stride + 1, Q from W alike
//! patch (p, q) of a sample: the K x K pixels of every channel under output pixel (p, q), 0 outside the picture
//!
//! y  [O, N P Q]    = w . patches
//! dw [C K K, O]    = patches . dy^T                                   (then turned)
//! dx [C, N H W]    = w turned and flipped . patches of dy             stride 1: again a convolution
//! dx               = w^T . dy, each pixel's sum over the patches that hold it            any other stride
//! ```
//!
//! Patches are never stored for a whole batch where the stride is 1: they are copied from a padded picture into the
//! product's panels, so that they stay in the cache (as in M. Dukhan, "The Indirect Convolution Algorithm", 2019, and
//! cuDNN's implicit products, S. Chetlur et al., 2014). With G groups, every G-th part of the channels has its own product.
//! A 3 x 3 kernel of stride 1 over many channels goes by [`winograd`] instead, in fewer products.

mod winograd;

use super::gemm::{Left, Lines, Patches, Place, Walk, gemm, transpose};
use super::sum::sum;
use super::team::share_rows;
use super::{Cost, Float};
use winograd::Winograd;

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
    /// Groups that the channels are cut into, G; it divides both C and O.
    pub groups: usize,
}

impl Conv2d {
    /// (P, Q).
    ///
    /// # Panics
    /// If the kernel is larger than the padded picture, or the groups do not divide the channels.
    pub fn output_picture(&self) -> (usize, usize) {
        assert!(
            self.groups > 0
                && self.inputs.is_multiple_of(self.groups)
                && self.outputs.is_multiple_of(self.groups),
            "{} groups of {} and {} channels",
            self.groups,
            self.inputs,
            self.outputs
        );
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

    /// Elements of `work` that a batch of `n` needs: the transformed weight, or padded pictures or patches, and once the
    /// weight.
    pub fn work(&self, n: usize) -> usize {
        if let Some(winograd) = Winograd::of(self) {
            return winograd.weights();
        }
        let gradient = match self.turned() {
            Some((_, (height, width))) => self.outputs * height * width,
            None => self.patch() * self.pixels(),
        };
        n * gradient.max(self.padded()) + self.weights()
    }

    /// `x` to `y`; `work` keeps what the backward pass needs: padded pictures, or the transformed weight.
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

    /// Padded pictures `x` to `y`, by products with patches.
    fn products<F: Float>(&self, n: usize, x: &[F], w: &[F], y: &mut [F]) {
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

    /// One group's `y = w . patches`.
    fn product<F: Float>(&self, n: usize, group: usize, w: &[F], patches: &Patches<F>, y: &mut [F]) {
        let (patch, pixels, outputs) = (self.patch(), self.pixels(), self.outputs / self.groups);
        let left = Left {
            data: &w[group * outputs * patch..(group + 1) * outputs * patch],
            row: |o| o * patch,
            walk: Walk { counts: [1, 1, patch], steps: [0, 0, 1] },
        };
        let place = Place {
            base: group * outputs * pixels,
            row: pixels,
            plane: pixels,
            sample: self.outputs * pixels,
        };
        gemm((outputs, n * pixels), left, patches, (y, place), false);
    }

    /// The gradient of the weight, replaced; `work` is what the forward pass left.
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
        let (x, turned) = (if self.padding == 0 { x } else { padded }, &mut rest[..outputs * patch]);
        let (rows, cols) = self.output_picture();
        for group in 0..self.groups {
            let area = self.kernel * self.kernel;
            let left = Left {
                data: &x[group * self.inputs / self.groups * height * width..],
                row: |at| (at / area * height + at % area / self.kernel) * width + at % self.kernel,
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
            gemm((patch, outputs), left, &dy, (turned, Place::matrix(outputs)), false);
            let dw = &mut dw[group * outputs * patch..(group + 1) * outputs * patch];
            turn(turned, outputs, dw);
        }
    }

    /// The gradient of the input, replaced. `work` is what the forward pass left, and is used up.
    pub fn backward_input<F: Float>(&self, n: usize, w: &[F], dy: &[F], work: &mut [F], dx: &mut [F]) {
        self.lengths(n, dx, dy, w, work);
        if n == 0 {
            return;
        }
        if let Some(winograd) = Winograd::of(self) {
            return winograd.backward_input(dy, &work[..winograd.weights()], dx);
        }
        match self.turned() {
            Some((padding, picture)) => self.backward_turned(n, w, dy, work, dx, padding, picture),
            None => self.backward_patches(n, w, dy, work, dx),
        }
    }

    /// The padding and the padded picture of `dy` with which the backward pass is a convolution, if it is one.
    fn turned(&self) -> Option<(usize, (usize, usize))> {
        let padding = (self.kernel - 1).checked_sub(self.padding).filter(|_| self.stride == 1)?;
        let (rows, cols) = self.output_picture();
        Some((padding, (rows + 2 * padding, cols + 2 * padding)))
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
        let (turned, rest) = work.split_at_mut(self.weights());
        self.turn_weight(w, turned);
        let back = Conv2d { inputs: self.outputs, outputs: self.inputs, picture, padding: 0, ..*self };
        let dy = if padding == 0 {
            dy
        } else {
            let padded = &mut rest[..n * back.input()];
            pad(dy, self.output_picture(), padding, padded);
            padded
        };
        // Not as `forward` would choose: there is no room for a transformed weight.
        back.products(n, dy, turned, dx);
    }

    /// `turned[c][o][flipped kernel] = w[o][c][kernel]`, group by group.
    fn turn_weight<F: Float>(&self, w: &[F], turned: &mut [F]) {
        let (inputs, outputs, area) =
            (self.inputs / self.groups, self.outputs / self.groups, self.kernel * self.kernel);
        share_rows(turned, outputs * area, |channels, turned| {
            for (c, turned) in channels.zip(turned.chunks_exact_mut(outputs * area)) {
                let (group, c) = (c / inputs, c % inputs);
                for (o, to) in turned.chunks_exact_mut(area).enumerate() {
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
                row: |at| at,
                walk: Walk { counts: [1, 1, outputs], steps: [0, 0, patch] },
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
            gemm((patch, n * pixels), left, &dy, (columns, Place::matrix(n * pixels)), false);
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

    /// Adds the columns of one channel and sample, `step` elements from one kernel position to the next, into the
    /// pixels that they came from, in a fixed order.
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

    /// The gradient of the bias, replaced: the sum of `dy` over samples and pixels.
    pub fn backward_bias<F: Float>(&self, dy: &[F], db: &mut [F]) {
        let pixels = self.pixels();
        for (o, db) in db.iter_mut().enumerate() {
            let planes = dy.chunks_exact(pixels).skip(o).step_by(self.outputs);
            *db = F::from_f64(planes.map(|plane| sum(plane, |dy| dy)).sum());
        }
    }

    /// Cost of [`Conv2d::forward`], as one kernel that reads pictures and never stores patches.
    pub fn forward_cost<F: Float>(&self, n: usize) -> Cost {
        let (x, y) = (n * self.input(), n * self.outputs * self.pixels());
        Cost::launch(2 * y * self.patch(), x + y + self.weights(), size_of::<F>())
    }

    /// Cost of [`Conv2d::backward_params`]: the same products.
    pub fn backward_params_cost<F: Float>(&self, n: usize) -> Cost {
        self.forward_cost::<F>(n)
    }

    /// Cost of [`Conv2d::backward_input`]: the same products.
    pub fn backward_input_cost<F: Float>(&self, n: usize) -> Cost {
        self.forward_cost::<F>(n)
    }

    /// C / G K K.
    fn patch(&self) -> usize {
        self.inputs / self.groups * self.kernel * self.kernel
    }

    /// Elements of the weight.
    pub fn weights(&self) -> usize {
        self.outputs * self.patch()
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

    fn padded_picture(&self) -> (usize, usize) {
        (self.picture.0 + 2 * self.padding, self.picture.1 + 2 * self.padding)
    }

    /// Elements of a padded sample.
    fn padded(&self) -> usize {
        let (height, width) = self.padded_picture();
        self.inputs * height * width
    }

    fn lengths<F>(&self, n: usize, x: &[F], y: &[F], w: &[F], work: &[F]) {
        let want = (n * self.input(), n * self.outputs * self.pixels(), self.weights());
        assert_eq!((x.len(), y.len(), w.len()), want, "input, output and weight of {n} samples");
        let needed = Winograd::of(self).map_or(n * self.padded(), |winograd| winograd.weights());
        assert!(self.padding == 0 || work.len() >= needed, "{} elements of room for {n} samples", work.len());
    }
}

/// Pictures with zeros around them.
fn pad<F: Float>(x: &[F], (height, width): (usize, usize), padding: usize, padded: &mut [F]) {
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

/// The transpose of `from`, whose rows have `cols` elements.
fn turn<F: Float>(from: &[F], cols: usize, to: &mut [F]) {
    let rows = from.len() / cols;
    share_rows(to, rows, |range, to| transpose(&from[range.start..], (range.len(), rows), cols, to, rows));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::gradcheck::{check, dot, numbers};
    use proptest::prelude::*;

    /// The definition, pixel by pixel.
    pub fn direct(s: &Conv2d, n: usize, x: &[f64], w: &[f64]) -> Vec<f64> {
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
                            let (per, each) = (s.inputs / s.groups, s.outputs / s.groups);
                            if c / per == o / each {
                                sum += x[pixel] * w[((o * per + c % per) * k + i) * k + j];
                            }
                        }
                    }
                    y.push(sum);
                }
            }
        }
        y
    }

    fn shapes() -> impl Strategy<Value = Conv2d> {
        (1usize..3, 1usize..4, 1usize..6, 1usize..6, 1usize..4, 1usize..4, 0usize..3, 1usize..4)
            .prop_map(|(inputs, outputs, h, w, kernel, stride, padding, groups)| {
                let (picture, inputs, outputs) = ((h, w), inputs * groups, outputs * groups);
                Conv2d { inputs, outputs, picture, kernel, stride, padding, groups }
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
                let mut work = vec![7.0; s.work(n)];
                s.forward(n, x, w, &mut work, &mut y);
                (y, work)
            };
            let (y, mut work) = run(&x, &w);
            let want = direct(&s, n, &x, &w);
            prop_assert!(y.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-12));

            let r = numbers(y.len(), 3);
            let (mut dw, mut dx) = (vec![9.0; w.len()], vec![9.0; x.len()]);
            s.backward_params(n, &x, &mut work, &r, &mut dw);
            s.backward_input(n, &w, &r, &mut work, &mut dx);
            check("x", &x, &dx, |x| dot(&run(x, &w).0, &r));
            check("w", &w, &dw, |w| dot(&run(&x, w).0, &r));
        }
    }

    #[test]
    fn cost_is_two_per_tap() {
        let s =
            Conv2d { inputs: 16, outputs: 32, picture: (8, 8), kernel: 3, stride: 1, padding: 1, groups: 1 };
        assert_eq!(s.forward_cost::<f32>(10).flops, 10 * 2 * 32 * 64 * 16 * 9);
    }

    /// Its output is too small for Winograd's tiles and its input is not: the way back must not take them either.
    #[test]
    fn a_convolution_too_small_for_winograd_one_way_has_its_gradient() {
        for picture in [(5, 5), (4, 7)] {
            let s = Conv2d { inputs: 64, outputs: 64, picture, kernel: 3, stride: 1, padding: 0, groups: 1 };
            let (n, area) = (2, 9);
            let (x, w) = (numbers(n * s.input(), 1), numbers(s.weights(), 2));
            let r = numbers(n * s.outputs * s.pixels(), 3);
            let (mut y, mut work) = (vec![9.0; r.len()], vec![7.0; s.work(n)]);
            let mut dx = vec![9.0; x.len()];
            s.forward(n, &x, &w, &mut work, &mut y);
            s.backward_input(n, &w, &r, &mut work, &mut dx);
            let turned: Vec<f64> = (0..w.len())
                .map(|at| (at / (64 * area), at / area % 64, at % area))
                .map(|(c, o, tap)| w[(o * 64 + c) * area + area - 1 - tap])
                .collect();
            let back = Conv2d { picture: s.output_picture(), padding: 2, ..s };
            for (got, want) in [(y, direct(&s, n, &x, &w)), (dx, direct(&back, n, &r, &turned))] {
                assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-11), "{picture:?}");
            }
        }
    }

    /// Whole tiles, panels and depths, in f32 and f64, on every number of threads.
    #[test]
    fn the_same_bits_on_any_number_of_threads_and_near_f64() {
        let shape = |picture, stride, kernel| Conv2d {
            inputs: 24,
            outputs: 56,
            picture,
            kernel,
            stride,
            padding: kernel / 2,
            groups: 1,
        };
        for s in [
            shape((16, 16), 1, 3),
            shape((4, 4), 1, 3),
            shape((8, 8), 2, 3),
            shape((8, 8), 2, 1),
            shape((9, 11), 1, 5),
        ] {
            let n = 6;
            let (x, w) = (numbers(n * s.input(), 1), numbers(s.weights(), 2));
            let r = numbers(n * s.outputs * s.pixels(), 3);
            let narrow = |a: &[f64]| a.iter().map(|&a| a as f32).collect::<Vec<f32>>();
            fn all<F: Float>(s: &Conv2d, n: usize, x: &[F], w: &[F], r: &[F], threads: usize) -> Vec<F> {
                let mut work = vec![F::ONE; s.work(n)];
                let (mut y, mut dw, mut dx) =
                    (vec![F::ONE; r.len()], vec![F::ONE; w.len()], vec![F::ONE; x.len()]);
                super::super::Team::new(threads).enter(|| {
                    s.forward(n, x, w, &mut work, &mut y);
                    s.backward_params(n, x, &mut work, r, &mut dw);
                    s.backward_input(n, w, r, &mut work, &mut dx);
                });
                [y, dw, dx].concat()
            }
            let exact = all(&s, n, &x, &w, &r, 1);
            let want = all(&s, n, &narrow(&x), &narrow(&w), &narrow(&r), 1);
            for threads in [2, 3] {
                assert!(all(&s, n, &narrow(&x), &narrow(&w), &narrow(&r), threads) == want);
            }
            let worst = exact.iter().zip(&want).map(|(a, &b)| (a - f64::from(b)).abs()).fold(0.0, f64::max);
            assert!(worst < 3e-4, "{s:?}: {worst}");
            let y = direct(&s, n, &x, &w);
            assert!(exact.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-11));
        }
    }
}
