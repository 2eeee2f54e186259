//! Embedding lookup: rows of a table by number.
//!
//! ```text
//! x [N] whole numbers below V     w [V, C]     y[n] = w[x[n]]     dw[v] = sum of dy[n] over the n with x[n] = v
//! ```

use super::{Float, OpCost};

/// The shape of an embedding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingShape {
    /// The number of rows, V.
    pub rows: usize,
    /// The number of elements of a row, C.
    pub width: usize,
}

impl EmbeddingShape {
    /// Copies the rows whose numbers are in `x` to `y`.
    ///
    /// # Panics
    /// If `x` names a row that does not exist.
    pub fn forward<F: Float>(&self, x: &[F], w: &[F], y: &mut [F]) {
        assert!(w.len() == self.rows * self.width && y.len() == x.len() * self.width);
        for (&x, y) in x.iter().zip(y.chunks_exact_mut(self.width)) {
            y.copy_from_slice(&w[self.row(x)]);
        }
    }

    /// Replaces `dw` by the gradient of the table, summed in order of positions.
    ///
    /// # Panics
    /// If `x` names a row that does not exist.
    pub fn backward_params<F: Float>(&self, x: &[F], dy: &[F], dw: &mut [F]) {
        assert!(dw.len() == self.rows * self.width && dy.len() == x.len() * self.width);
        dw.fill(F::ZERO);
        for (&x, dy) in x.iter().zip(dy.chunks_exact(self.width)) {
            dw[self.row(x)].iter_mut().zip(dy).for_each(|(dw, &dy)| *dw += dy);
        }
    }

    fn row<F: Float>(&self, x: F) -> std::ops::Range<usize> {
        let row = x.to_f64() as usize;
        assert!(row < self.rows && row as f64 == x.to_f64(), "{x:?} is no row of {}", self.rows);
        row * self.width..(row + 1) * self.width
    }

    /// The costs of a forward and of a backward pass over `n` positions; the backward pass also clears the table.
    pub fn cost<F: Float>(&self, n: usize) -> [OpCost; 2] {
        let moved = 2 * n * self.width;
        [
            OpCost::launch(0, moved, size_of::<F>()),
            OpCost::launch(n * self.width, moved + self.rows * self.width, size_of::<F>()),
        ]
    }
}
