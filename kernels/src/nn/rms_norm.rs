//! Root mean square normalisation (B. Zhang and R. Sennrich, NeurIPS 2019) of rows.
//!
//! ```text
//! x, y [R, C]    w [C]     y = x r w     r = 1 / sqrt(mean x^2 + eps), of each row
//! dw = sum dy x r over R     dx = r (g - x r^2 mean (g x)),     g = dy w
//! ```

use super::simd::vectorised;
use super::sum::{sum, sum_pairs};
use super::thread_pool::{share_rows, share_rows_of};
use super::{Float, OpCost};

/// The shape of a root mean square normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormShape {
    /// The number of elements of a row, C.
    pub width: usize,
    /// The constant that is added to the mean square.
    pub eps: f64,
}

vectorised! {
    fn forward<F>(x: &[F], w: &[F], eps: f64, saved: &mut [F], y: &mut [F]) {
        let width = w.len();
        for ((x, saved), y) in x.chunks_exact(width).zip(saved).zip(y.chunks_exact_mut(width)) {
            let r = F::from_f64(1.0 / (sum(x, |x| x * x) / width as f64 + eps).sqrt());
            *saved = r;
            for ((y, &x), &w) in y.iter_mut().zip(x).zip(w) {
                *y = x * r * w;
            }
        }
    }

    fn backward_params<F>(x: &[F], saved: &[F], dy: &[F], width: usize, from: usize, dw: &mut [F]) {
        dw.fill(F::ZERO);
        for ((x, &r), dy) in x.chunks_exact(width).zip(saved).zip(dy.chunks_exact(width)) {
            for ((dw, &x), &dy) in dw.iter_mut().zip(&x[from..]).zip(&dy[from..]) {
                *dw += dy * (x * r);
            }
        }
    }

    fn backward_input<F>(x: &[F], w: &[F], saved: &[F], dy: &[F], dx: &mut [F]) {
        let width = w.len();
        let rows = x.chunks_exact(width).zip(saved).zip(dy.chunks_exact(width));
        for (((x, &r), dy), dx) in rows.zip(dx.chunks_exact_mut(width)) {
            dx.iter_mut().zip(dy).zip(w).for_each(|((dx, &dy), &w)| *dx = dy * w);
            let r2 = r.to_f64() * r.to_f64();
            let shift = F::from_f64(sum_pairs(dx, x, |g, x| g * x) * r2 / width as f64);
            dx.iter_mut().zip(x).for_each(|(dx, &x)| *dx = (*dx - x * shift) * r);
        }
    }
}

impl RmsNormShape {
    /// Computes `y` from `x`; `saved` (R) receives r of each row for the backward pass.
    pub fn forward<F: Float>(&self, x: &[F], w: &[F], saved: &mut [F], y: &mut [F]) {
        assert!(x.len() == y.len() && w.len() == self.width && saved.len() * self.width == x.len());
        share_rows_of(x.len(), (y, self.width), (saved, 1), |rows, y, saved| {
            forward(&x[rows.start * self.width..rows.end * self.width], w, self.eps, saved, y);
        });
    }

    /// Replaces `dw` by the gradient of the weight.
    pub fn backward_params<F: Float>(&self, x: &[F], saved: &[F], dy: &[F], dw: &mut [F]) {
        assert!(x.len() == dy.len() && dw.len() == self.width);
        share_rows(dw, 1, |range, dw| backward_params(x, saved, dy, self.width, range.start, dw));
    }

    /// Replaces `dx` by the gradient of the input.
    pub fn backward_input<F: Float>(&self, x: &[F], w: &[F], saved: &[F], dy: &[F], dx: &mut [F]) {
        assert!(x.len() == dy.len() && dx.len() == dy.len() && w.len() == self.width);
        share_rows(dx, self.width, |rows, dx| {
            let all = rows.start * self.width..rows.end * self.width;
            backward_input(&x[all.clone()], w, &saved[rows], &dy[all], dx);
        });
    }

    /// The costs over `rows` rows of the forward pass, the weight's gradient and the input's gradient.
    pub fn cost<F: Float>(&self, rows: usize) -> [OpCost; 3] {
        let count = rows * self.width;
        [(4, 2), (3, 2), (6, 3)].map(|(flops, moved)| {
            OpCost::launch(flops * count, moved * count + self.width + rows, size_of::<F>())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::gradcheck::{check, dot, numbers};

    #[test]
    fn gradients_match_differences() {
        let shape = RmsNormShape { width: 6, eps: 1e-2 };
        let (x, w, dy) = (numbers(18, 1), numbers(6, 2), numbers(18, 3));
        let run = |x: &[f64], w: &[f64]| {
            let (mut saved, mut y) = (vec![9.0; 3], vec![9.0; 18]);
            shape.forward(x, w, &mut saved, &mut y);
            (y, saved)
        };
        let (_, saved) = run(&x, &w);
        let (mut dx, mut dw) = (vec![9.0; 18], vec![9.0; 6]);
        shape.backward_params(&x, &saved, &dy, &mut dw);
        shape.backward_input(&x, &w, &saved, &dy, &mut dx);
        check("x", &x, &dx, |x| dot(&run(x, &w).0, &dy));
        check("w", &w, &dw, |w| dot(&run(&x, w).0, &dy));
    }
}
