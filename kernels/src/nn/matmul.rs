//! Matrix products, which take most of training's time.
//!
//! ```text
//! out[m x n]  =  a[m x k] . b[k x n]          Store::Replace
//! out[m x n]  =  out + a . b                  Store::Add
//! ```
//!
//! The cost is 2 m n k operations; the threads of the caller's [`super::ThreadPool`] share them.

use super::gemm::{Left, Lines, Place, Walk, gemm};
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
    let left =
        Left { data: a.data, row: |i| i * row, walk: Walk { counts: [1, 1, k], steps: [0, 0, a.steps.1] } };
    let (k_step, j_step) = b.steps;
    // With a single column, the step to the next column does not matter; it is set to 1 to match a layout.
    let (k_step, j_step) = if n == 1 { (k_step, 1) } else { (k_step, j_step) };
    let right = Lines { data: b.data, k_step, j_step, plane: usize::MAX, sample: 0 };
    gemm((m, n), left, &right, (out, Place::matrix(step)), store == Store::Add);
}

/// The cost of an m x k by k x n product.
pub(super) fn cost<F>(m: usize, n: usize, k: usize) -> OpCost {
    OpCost::launch(2 * m * n * k, m * k + k * n + m * n, size_of::<F>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ThreadPool;
    use crate::nn::gradcheck::numbers;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_the_definition(
            m in 0usize..20, n in 0usize..20, k in prop_oneof![0usize..20, 505usize..1030],
            a_t: bool, b_t: bool, add: bool,
        ) {
            let (a, b, before) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
            let left = if a_t { Matrix::new(&a, k, m).t() } else { Matrix::new(&a, m, k) };
            let right = if b_t { Matrix::new(&b, n, k).t() } else { Matrix::new(&b, k, n) };
            let mut out = before.clone();
            matmul(&mut out, if add { Store::Add } else { Store::Replace }, left, right);
            for i in 0..m {
                for j in 0..n {
                    let entry = |d: usize| {
                        let x = if a_t { a[d * m + i] } else { a[i * k + d] };
                        x * if b_t { b[j * k + d] } else { b[d * n + j] }
                    };
                    let want = (0..k).map(entry).sum::<f64>() + if add { before[i * n + j] } else { 0.0 };
                    prop_assert!((out[i * n + j] - want).abs() < 1e-11, "{i},{j}: {} {want}", out[i * n + j]);
                }
            }
        }
    }

    /// Covers transposed operands, copied in pieces of 32 rows, of eight and of the rest; straight operands of whole vectors and
    /// others; and depths of more than one block.
    #[test]
    fn how_operands_lie_changes_no_bits() {
        let turn = |x: &[f32], rows: usize| -> Vec<f32> {
            let cols = x.len() / rows;
            (0..x.len()).map(|i| x[i % rows * cols + i / rows]).collect()
        };
        let narrow = |x: Vec<f64>| x.into_iter().map(|x| x as f32).collect::<Vec<_>>();
        for (m, n, k) in
            [(300, 64, 400), (77, 50, 20), (32, 48, 33), (40, 128, 800), (7, 16, 64), (256, 512, 9)]
        {
            let (a, b) = (narrow(numbers(m * k, 1)), narrow(numbers(k * n, 2)));
            let (a_turned, b_turned) = (turn(&a, m), turn(&b, k));
            let all = |a_t: bool, b_t: bool| {
                let left = if a_t { Matrix::new(&a_turned, k, m).t() } else { Matrix::new(&a, m, k) };
                let right = if b_t { Matrix::new(&b_turned, n, k).t() } else { Matrix::new(&b, k, n) };
                let mut out = vec![9f32; m * n];
                matmul(&mut out, Store::Replace, left, right);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let want = all(false, false);
            for (a_t, b_t) in [(true, false), (false, true), (true, true)] {
                assert!(all(a_t, b_t) == want, "{m} x {n} x {k}, turned: {a_t}, {b_t}");
            }
        }
    }

    /// Covers shapes that are cut by rows, by columns between panels and between vectors, and edges that fill no tile.
    #[test]
    fn threads_change_no_bits() {
        for (m, n, k) in [(256, 128, 40), (130, 67, 70), (64, 128, 100), (40, 784, 64), (9, 1000, 60)] {
            let all = |threads: usize, a_t: bool| {
                let narrow = |x: Vec<f64>| x.into_iter().map(|x| x as f32).collect::<Vec<_>>();
                let (a, b) = (narrow(numbers(m * k, 1)), narrow(numbers(k * n, 2)));
                let left = if a_t { Matrix::new(&a, k, m).t() } else { Matrix::new(&a, m, k) };
                let mut out = narrow(numbers(m * n, 3));
                ThreadPool::new(threads)
                    .enter(|| matmul(&mut out, Store::Add, left, Matrix::new(&b, n, k).t()));
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            for a_t in [false, true] {
                let want = all(1, a_t);
                for threads in [2, 3, 5] {
                    assert!(all(threads, a_t) == want, "{m} x {n} x {k}, {threads} threads, turned {a_t}");
                }
            }
        }
    }
}
