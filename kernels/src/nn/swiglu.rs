//! A gated linear unit whose gate is the sigmoid linear unit (N. Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202).
//!
//! ```text
//! x [R, 2 C]: gates g and values u of each row, side by side        y [R, C] = g s u,     s = 1 / (1 + exp(-g))
//! dg = dy u s (1 + g (1 - s))     du = dy g s
//! ```

use super::simd::vectorised;
use super::thread_pool::share_rows;
use super::{Float, OpCost};

/// The shape of a gated linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwigluShape {
    /// The number of outputs of a row, C.
    pub width: usize,
}

vectorised! {
    fn forward<F>(width: usize, x: &[F], y: &mut [F]) {
        for (x, y) in x.chunks_exact(2 * width).zip(y.chunks_exact_mut(width)) {
            let (g, u) = x.split_at(width);
            for ((y, &g), &u) in y.iter_mut().zip(g).zip(u) {
                *y = g / (F::ONE + (-g).exp_fast()) * u;
            }
        }
    }

    fn backward<F>(width: usize, x: &[F], dy: &[F], dx: &mut [F]) {
        let rows = x.chunks_exact(2 * width).zip(dy.chunks_exact(width));
        for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(2 * width)) {
            let ((g, u), (dg, du)) = (x.split_at(width), dx.split_at_mut(width));
            for ((((dg, du), &g), &u), &dy) in dg.iter_mut().zip(du).zip(g).zip(u).zip(dy) {
                let s = F::ONE / (F::ONE + (-g).exp_fast());
                *dg = dy * u * (s * (F::ONE + g * (F::ONE - s)));
                *du = dy * (g * s);
            }
        }
    }
}

impl SwigluShape {
    /// Computes `y` from `x`.
    pub fn forward<F: Float>(&self, x: &[F], y: &mut [F]) {
        assert!(x.len() == 2 * y.len() && y.len().is_multiple_of(self.width));
        let each = 2 * self.width;
        share_rows(y, self.width, |rows, y| forward(self.width, &x[rows.start * each..rows.end * each], y));
    }

    /// Replaces `dx` by the gradient of the input.
    pub fn backward<F: Float>(&self, x: &[F], dy: &[F], dx: &mut [F]) {
        assert!(x.len() == 2 * dy.len() && dx.len() == x.len() && dy.len().is_multiple_of(self.width));
        let each = 2 * self.width;
        share_rows(dx, each, |rows, dx| {
            let dy = &dy[rows.start * self.width..rows.end * self.width];
            backward(self.width, &x[rows.start * each..rows.end * each], dy, dx);
        });
    }

    /// The costs over `rows` rows of the forward and the backward pass.
    pub fn costs<F: Float>(&self, rows: usize) -> [OpCost; 2] {
        let count = rows * self.width;
        [(20, 3), (26, 5)].map(|(flops, moved)| OpCost::launch(flops * count, moved * count, size_of::<F>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::gradcheck::{check, dot, numbers};

    #[test]
    fn gradients_match_differences_and_far_gates_are_open_or_shut() {
        let shape = SwigluShape { width: 5 };
        let (x, dy) = (numbers(30, 1), numbers(15, 2));
        let run = |x: &[f64]| {
            let mut y = vec![9.0; x.len() / 2];
            shape.forward(x, &mut y);
            y
        };
        let mut dx = vec![9.0; 30];
        shape.backward(&x, &dy, &mut dx);
        check("x", &x, &dx, |x| dot(&run(x), &dy));
        let far = SwigluShape { width: 2 };
        let (mut y, mut dx) = ([9.0f32; 2], [9.0f32; 4]);
        far.forward(&[-200.0, 200.0, 3.0, 3.0], &mut y);
        far.backward(&[-200.0, 200.0, 3.0, 3.0], &[1.0, 1.0], &mut dx);
        assert!(y == [0.0, 600.0] && dx == [0.0, 3.0, 0.0, 200.0], "{y:?} {dx:?}");
    }
}
