//! Matrix products, which take most of training's time.
//!
//! ```text
//! out[m x n]  =  a[m x k] . b[k x n]          Store::Replace
//! out[m x n]  =  out + a . b                  Store::Add
//! ```
//!
//! The cost is 2 m n k operations; the threads of the caller's [`super::ThreadPool`] share them.

use super::gemm::{Left, Lines, Place, Right, Walk, gemm};
use super::{Float, OpCost};

/// A view of a slice as a matrix, which may be a transpose.
#[derive(Clone, Copy)]
pub struct Matrix<'a, F> {
    data: &'a [F],
    rows: usize,
    cols: usize,
    /// The distance in elements from one row to the next, and from one column to the next.
    steps: (usize, usize),
}

impl<'a, F: Float> Matrix<'a, F> {
    /// A row-major matrix of `rows` x `cols`.
    ///
    /// # Panics
    /// If the slice does not have exactly that many elements.
    pub fn new(data: &'a [F], rows: usize, cols: usize) -> Matrix<'a, F> {
        assert_eq!(data.len(), rows * cols, "a {rows} x {cols} matrix over {} elements", data.len());
        Matrix { data, rows, cols, steps: (cols, 1) }
    }

    /// A row-major matrix of `rows` x `cols`, with `step` elements from one row to the next.
    ///
    /// # Panics
    /// If the slice is too short, or the rows overlap.
    pub fn within(data: &'a [F], rows: usize, cols: usize, step: usize) -> Matrix<'a, F> {
        assert!(
            cols <= step && data.len() + step >= rows * step + cols,
            "{rows} rows of {cols}, {step} apart"
        );
        Matrix { data, rows, cols, steps: (step, 1) }
    }

    /// The transpose, without a copy.
    pub fn t(self) -> Matrix<'a, F> {
        Matrix { rows: self.cols, cols: self.rows, steps: (self.steps.1, self.steps.0), ..self }
    }
}

/// Whether a product replaces the content of the output or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The product replaces the content of the output.
    Replace,
    /// The product is added to the content of the output.
    Add,
}

/// Computes `out = a . b`, or `out += a . b`; `out` is row-major.
///
/// # Panics
/// If the shapes do not match.
pub fn matmul<F: Float>(out: &mut [F], store: Store, a: Matrix<F>, b: Matrix<F>) {
    let (m, n) = (a.rows, b.cols);
    assert_eq!(out.len(), m * n, "a {m} x {n} product into {} elements", out.len());
    matmul_within(out, n, store, a, b);
}

/// Like [`matmul`], with output rows that begin `step` elements apart. The elements between the rows stay unchanged.
///
/// # Panics
/// If the shapes do not match.
pub fn matmul_within<F: Float>(out: &mut [F], step: usize, store: Store, a: Matrix<F>, b: Matrix<F>) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(a.cols, b.rows, "inner dimensions of a product");
    assert!(n <= step, "rows of {n} that are {step} apart overlap");
    let row = a.steps.0;
    let left = Left { data: a.data, rows: Walk::straight(m, row), walk: Walk::straight(k, a.steps.1) };
    let (k_step, j_step) = b.steps;
    // With a single column, the step to the next column does not matter; it is set to 1 to match a layout.
    let (k_step, j_step) = if n == 1 { (k_step, 1) } else { (k_step, j_step) };
    let right = Lines { data: b.data, k_step, j_step, plane: usize::MAX, sample: 0 };
    gemm((m, n), left, Right::Lines(right), (out, Place::matrix(step)), store == Store::Add);
}

/// The cost of an m x k by k x n product.
pub(super) fn cost<F>(m: usize, n: usize, k: usize) -> OpCost {
    OpCost::launch(2 * m * n * k, m * k + k * n + m * n, size_of::<F>())
}
