//! Layer normalisation (J. L. Ba, J. R. Kiros and G. E. Hinton, arXiv:1607.06450) of rows.
//!
//! ```text
//! x, y [R, C]    w, b [C]     y = (x - mean) r w + b     r = 1 / sqrt(var + eps), of each row, var biased
//! db = sum dy over R     dw = sum dy xhat     dx = r (g - mean g - xhat mean (g xhat)),     g = dy w
//! ```

use super::simd::vectorised;
use super::sum::{sum, sums_of_pairs};
use super::thread_pool::{share_rows, share_rows_of};
use super::{Float, OpCost};

/// The shape of a layer normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormShape {
    /// The number of elements of a row, C.
    pub width: usize,
    /// The constant that is added to the variance; PyTorch's default is [`LayerNormShape::EPS`].
    pub eps: f64,
}

vectorised! {
    fn forward<F>(x: &[F], w: &[F], b: &[F], eps: f64, saved: &mut [F], y: &mut [F]) {
        let width = w.len();
        for ((x, saved), y) in x.chunks_exact(width).zip(saved.chunks_exact_mut(2)).zip(y.chunks_exact_mut(width)) {
            let mean = sum(x, |x| x) / width as f64;
            let var = sum(x, |x| (x - mean) * (x - mean)) / width as f64;
            let (mean, r) = (F::from_f64(mean), F::from_f64(1.0 / (var + eps).sqrt()));
            (saved[0], saved[1]) = (mean, r);
            for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(w).zip(b) {
                *y = (x - mean) * r * w + b;
            }
        }
    }

    fn backward_params<F>(x: &[F], saved: &[F], dy: &[F], width: usize, from: usize, dw: &mut [F], db: &mut [F]) {
        dw.fill(F::ZERO);
        db.fill(F::ZERO);
        for ((x, saved), dy) in x.chunks_exact(width).zip(saved.chunks_exact(2)).zip(dy.chunks_exact(width)) {
            let (mean, r) = (saved[0], saved[1]);
            for (((dw, db), &x), &dy) in dw.iter_mut().zip(db.iter_mut()).zip(&x[from..]).zip(&dy[from..]) {
                *dw += dy * ((x - mean) * r);
                *db += dy;
            }
        }
    }

    fn backward_input<F>(x: &[F], w: &[F], saved: &[F], dy: &[F], dx: &mut [F]) {
        let width = w.len();
        let rows = x.chunks_exact(width).zip(saved.chunks_exact(2)).zip(dy.chunks_exact(width));
        for (((x, saved), dy), dx) in rows.zip(dx.chunks_exact_mut(width)) {
            let (mean, r) = (saved[0], saved[1]);
            dx.iter_mut().zip(dy).zip(w).for_each(|((dx, &dy), &w)| *dx = dy * w);
            let m = mean.to_f64();
            let (g, gx) = sums_of_pairs(dx, x, |g, x| (g, g * (x - m)));
            let (g, gx) = (F::from_f64(g / width as f64), F::from_f64(gx * r.to_f64() / width as f64));
            for (dx, &x) in dx.iter_mut().zip(x) {
                *dx = (*dx - g - (x - mean) * r * gx) * r;
            }
        }
    }
}

impl LayerNormShape {
    /// The default constant that is added to the variance.
    pub const EPS: f64 = 1e-5;

    /// Computes `y` from `x`; `saved` (2 R) receives mean and r of each row for the backward pass.
    pub fn forward<F: Float>(&self, x: &[F], w: &[F], b: &[F], saved: &mut [F], y: &mut [F]) {
        assert!(x.len() == y.len() && w.len() == self.width && b.len() == self.width);
        assert_eq!(saved.len() * self.width, 2 * x.len());
        share_rows_of(x.len(), (y, self.width), (saved, 2), |rows, y, saved| {
            forward(&x[rows.start * self.width..rows.end * self.width], w, b, self.eps, saved, y);
        });
    }

    /// Replaces `dw` and `db` by the gradients of weight and bias.
    pub fn backward_params<F: Float>(&self, x: &[F], saved: &[F], dy: &[F], dw: &mut [F], db: &mut [F]) {
        assert!(x.len() == dy.len() && dw.len() == self.width && db.len() == self.width);
        share_rows_of(x.len(), (dw, 1), (db, 1), |range, dw, db| {
            backward_params(x, saved, dy, self.width, range.start, dw, db);
        });
    }

    /// Replaces `dx` by the gradient of the input.
    pub fn backward_input<F: Float>(&self, x: &[F], w: &[F], saved: &[F], dy: &[F], dx: &mut [F]) {
        assert!(x.len() == dy.len() && dx.len() == dy.len() && w.len() == self.width);
        share_rows(dx, self.width, |rows, dx| {
            let all = rows.start * self.width..rows.end * self.width;
            backward_input(&x[all.clone()], w, &saved[2 * rows.start..2 * rows.end], &dy[all], dx);
        });
    }

    /// The costs over `rows` rows of the forward pass, the parameters' gradients and the input's gradient.
    pub fn cost<F: Float>(&self, rows: usize) -> [OpCost; 3] {
        let count = rows * self.width;
        [(9, 2), (4, 2), (10, 3)].map(|(flops, moved)| {
            OpCost::launch(flops * count, moved * count + 2 * (self.width + rows), size_of::<F>())
        })
    }
}
