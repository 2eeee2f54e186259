//! A fully connected layer.
//!
//! ```text
//! y[N, O] = x[N, C] . w[O, C]^T + b[O]
//! dw = dy^T . x      db = sum of dy over N      dx = dy . w
//! ```

use super::matmul::{self, Matrix, Store, matmul};
use super::simd::vectorised;
use super::sum::columns;
use super::thread_pool::share_rows;
use super::{Float, OpCost};

vectorised! {
    fn add_line<F>(line: &[F], y: &mut [F]) {
        for row in y.chunks_exact_mut(line.len()) {
            row.iter_mut().zip(line).for_each(|(y, &b)| *y += b);
        }
    }
}

/// The shape of a linear layer; the weight is stored output-major, as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// The number of inputs per sample, C.
    pub inputs: usize,
    /// The number of outputs per sample, O.
    pub outputs: usize,
}

impl LinearShape {
    /// Computes `y[n, O]` from `x[n, C]`; `b` is empty for a layer without bias.
    pub fn forward<F: Float>(&self, n: usize, x: &[F], w: &[F], b: &[F], y: &mut [F]) {
        assert!(b.is_empty() || b.len() == self.outputs);
        matmul(
            y,
            Store::Replace,
            Matrix::new(x, n, self.inputs),
            Matrix::new(w, self.outputs, self.inputs).t(),
        );
        if b.is_empty() {
            return;
        }
        share_rows(y, self.outputs, |_, y| add_line(b, y));
    }

    /// Replaces `dw` and `db` by the gradients of weight and bias; `db` is empty for a layer without bias.
    pub fn backward_params<F: Float>(&self, n: usize, x: &[F], dy: &[F], dw: &mut [F], db: &mut [F]) {
        assert!(db.is_empty() || db.len() == self.outputs);
        matmul(dw, Store::Replace, Matrix::new(dy, n, self.outputs).t(), Matrix::new(x, n, self.inputs));
        columns(dy, db);
    }

    /// Replaces `dx` by the gradient of the input.
    pub fn backward_input<F: Float>(&self, n: usize, w: &[F], dy: &[F], dx: &mut [F]) {
        matmul(
            dx,
            Store::Replace,
            Matrix::new(dy, n, self.outputs),
            Matrix::new(w, self.outputs, self.inputs),
        );
    }

    /// The cost of [`LinearShape::forward`].
    pub fn forward_cost<F: Float>(&self, n: usize) -> OpCost {
        matmul::cost::<F>(n, self.outputs, self.inputs)
            + OpCost::launch(n * self.outputs, 2 * n * self.outputs + self.outputs, size_of::<F>())
    }

    /// The cost of [`LinearShape::backward_params`].
    pub fn backward_params_cost<F: Float>(&self, n: usize) -> OpCost {
        matmul::cost::<F>(self.outputs, self.inputs, n)
            + OpCost::launch(n * self.outputs, n * self.outputs + self.outputs, size_of::<F>())
    }

    /// The cost of [`LinearShape::backward_input`].
    pub fn backward_input_cost<F: Float>(&self, n: usize) -> OpCost {
        matmul::cost::<F>(n, self.inputs, self.outputs)
    }
}
