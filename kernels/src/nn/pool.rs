//! Pooling: the maximum or the mean of each window of a plane.
//!
//! ```text
//! x [N, C, H, W]  to  y [N, C, P, Q]     P = (H + 2 pad - K) / stride + 1, Q likewise from W
//! max:  dx = dy at the window's first maximum          (NaN counts as larger than any number)
//! mean: dx = dy / K^2 over the whole window        (no padding)
//! ```
//!
//! Global average pooling is the mean with K = H = W, or [`PoolShape::global_mean`] if H and W differ.

use super::sum::sum;
use super::thread_pool::share_rows_of;
use super::{Float, OpCost};

/// The shape of a pooling layer with a square window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// The number of channels, C.
    pub channels: usize,
    /// Height and width of the input picture, H and W.
    pub picture: (usize, usize),
    /// The side of a window in pixels, K.
    pub window: usize,
    /// The pixels from one window to the next; at least 1.
    pub stride: usize,
    /// The pixels around the picture that no maximum counts; less than K.
    pub padding: usize,
}

impl PoolShape {
    /// Height and width of the output picture, P and Q.
    ///
    /// # Panics
    /// If the window is larger than the padded picture, or not larger than the padding.
    pub fn output_picture(&self) -> (usize, usize) {
        let side = |side: usize| {
            let side = side + 2 * self.padding;
            assert!(self.window <= side && self.stride > 0, "a window of {} over {side} pixels", self.window);
            assert!(self.padding < self.window, "a window of {} lies in the padding", self.window);
            (side - self.window) / self.stride + 1
        };
        (side(self.picture.0), side(self.picture.1))
    }

    /// Writes the maximum of each window to `y`; `winners` receives the index in `x` of each maximum.
    pub fn max_forward<F: Float>(&self, n: usize, x: &[F], y: &mut [F], winners: &mut [u32]) {
        self.lengths(n, x.len(), y.len());
        assert_eq!(winners.len(), y.len());
        let width = self.picture.1;
        let (height, (_, outputs)) = (self.picture.0, self.output_picture());
        share_rows_of(x.len(), (y, outputs), (winners, outputs), |lines, y, winners| {
            for (i, (y, winners)) in
                lines.zip(y.chunks_exact_mut(outputs).zip(winners.chunks_exact_mut(outputs)))
            {
                let (plane, p) = (i / self.output_picture().0, i % self.output_picture().0);
                let rows = self.inside(p, height);
                for (q, (y, winner)) in y.iter_mut().zip(winners).enumerate() {
                    let cols = self.inside(q, width);
                    let corner = (plane * height + rows.start) * width + cols.start;
                    let (mut best, mut largest) = (corner, x[corner]);
                    for row in (0..rows.len()).map(|i| corner + i * width) {
                        for (at, &value) in (row..).zip(&x[row..row + cols.len()]) {
                            if value > largest || value.is_nan() {
                                (best, largest) = (at, value);
                            }
                        }
                    }
                    *y = largest;
                    *winner = best as u32;
                }
            }
        });
    }

    /// Replaces `dx` by the gradient of the input of [`PoolShape::max_forward`].
    pub fn max_backward<F: Float>(&self, n: usize, winners: &[u32], dy: &[F], dx: &mut [F]) {
        self.lengths(n, dx.len(), dy.len());
        dx.fill(F::ZERO);
        winners.iter().zip(dy).for_each(|(&at, &dy)| dx[at as usize] += dy);
    }

    /// Writes the mean of each window to `y`.
    pub fn mean_forward<F: Float>(&self, n: usize, x: &[F], y: &mut [F]) {
        self.lengths(n, x.len(), y.len());
        let (width, count) = (self.picture.1, F::from_f64((self.window * self.window) as f64));
        self.windows(n, |out, corner| {
            let row = |i: usize| &x[corner + i * width..corner + i * width + self.window];
            y[out] = (0..self.window).flat_map(row).fold(F::ZERO, |sum, &x| sum + x) / count;
        });
    }

    /// Replaces `dx` by the gradient of the input of [`PoolShape::mean_forward`].
    pub fn mean_backward<F: Float>(&self, n: usize, dy: &[F], dx: &mut [F]) {
        self.lengths(n, dx.len(), dy.len());
        let (width, count) = (self.picture.1, F::from_f64((self.window * self.window) as f64));
        dx.fill(F::ZERO);
        self.windows(n, |out, corner| {
            for i in 0..self.window {
                let row = &mut dx[corner + i * width..corner + i * width + self.window];
                row.iter_mut().for_each(|dx| *dx += dy[out] / count);
            }
        });
    }

    /// Writes the mean of every plane of `plane` elements to `y`, one element per plane: global average pooling.
    pub fn global_mean<F: Float>(plane: usize, x: &[F], y: &mut [F]) {
        assert_eq!(x.len(), y.len() * plane);
        share_rows_of(x.len(), (y, 1), (&mut [(); 0], 0), |planes, y, _| {
            for (y, x) in y.iter_mut().zip(x[planes.start * plane..].chunks_exact(plane)) {
                *y = F::from_f64(sum(x, |x| x) / plane as f64);
            }
        });
    }

    /// Replaces `dx` by the gradient of the input of [`PoolShape::global_mean`].
    pub fn global_mean_backward<F: Float>(plane: usize, dy: &[F], dx: &mut [F]) {
        assert_eq!(dx.len(), dy.len() * plane);
        let count = F::from_f64(plane as f64);
        dx.chunks_exact_mut(plane).zip(dy).for_each(|(dx, &dy)| dx.fill(dy / count));
    }

    /// The cost of [`PoolShape::global_mean`] over `planes` planes, and of its backward pass.
    pub fn global_mean_cost<F: Float>(plane: usize, planes: usize) -> OpCost {
        OpCost::launch(plane * planes, (plane + 1) * planes, size_of::<F>())
    }

    /// The cost of a forward pass, for maximum or mean.
    pub fn forward_cost<F: Float>(&self, n: usize) -> OpCost {
        let (x, y) = self.sizes(n);
        OpCost::launch(y * self.window * self.window, x + y, size_of::<F>())
    }

    /// The cost of a backward pass, for maximum or mean.
    pub fn backward_cost<F: Float>(&self, n: usize) -> OpCost {
        let (x, y) = self.sizes(n);
        OpCost::launch(y * self.window * self.window, x + 2 * y, size_of::<F>())
    }

    fn sizes(&self, n: usize) -> (usize, usize) {
        let (p, q) = self.output_picture();
        (n * self.channels * self.picture.0 * self.picture.1, n * self.channels * p * q)
    }

    fn lengths(&self, n: usize, x: usize, y: usize) {
        assert_eq!((x, y), self.sizes(n), "input and output of a pooling of {n} samples");
    }

    /// The range of a window's pixels inside the picture along one side, for the output at index `output`.
    fn inside(&self, output: usize, side: usize) -> std::ops::Range<usize> {
        let start = output * self.stride;
        start.saturating_sub(self.padding)..(start + self.window - self.padding).min(side)
    }

    /// Calls `each(output index, index of the window's corner in the input)` for every window; the padding must be 0.
    fn windows(&self, n: usize, mut each: impl FnMut(usize, usize)) {
        assert_eq!(self.padding, 0, "a mean has no padding");
        let ((height, width), (rows, cols)) = (self.picture, self.output_picture());
        let mut out = 0;
        for plane in 0..n * self.channels {
            for p in 0..rows {
                for q in 0..cols {
                    each(out, plane * height * width + p * self.stride * width + q * self.stride);
                    out += 1;
                }
            }
        }
    }
}
