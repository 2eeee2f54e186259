//! Matrix product, the one operation that most of training's time goes to.
//!
//! ```text
//! out[m x n]  =  a[m x k] . b[k x n]          Store::Replace
//! out[m x n]  =  out + a . b                  Store::Add
//! ```
//!
//! Cost: 2 m n k operations. The kernels are those of the `gemm` crate (blocking after K. Goto and R. van de
//! Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008), on the calling thread.

use super::{Cost, Float};
use gemm::{Parallelism, gemm};

/// A row-major matrix over a slice, perhaps seen transposed.
#[derive(Clone, Copy)]
pub struct Matrix<'a, F> {
    data: &'a [F],
    rows: usize,
    cols: usize,
    transposed: bool,
}

impl<'a, F: Float> Matrix<'a, F> {
    /// `rows` x `cols`, row after row.
    ///
    /// # Panics
    /// If the slice is not exactly that long.
    pub fn new(data: &'a [F], rows: usize, cols: usize) -> Matrix<'a, F> {
        assert_eq!(data.len(), rows * cols, "a {rows} x {cols} matrix over {} elements", data.len());
        Matrix { data, rows, cols, transposed: false }
    }

    /// The transpose; nothing is copied.
    pub fn t(self) -> Matrix<'a, F> {
        Matrix { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }

    /// (row stride, column stride), in elements.
    fn strides(&self) -> (isize, isize) {
        match self.transposed {
            false => (self.cols as isize, 1),
            true => (1, self.rows as isize),
        }
    }
}

/// What becomes of what the output held before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// It is overwritten.
    Replace,
    /// The product is added to it.
    Add,
}

/// The longest inner dimension given to the library at once. Its own blocks are never shorter than this, however
/// small the machine's caches, so the order of additions does not depend on them.
const DEPTH: usize = 512;

/// `out = a . b`, or `out += a . b`; `out` is row-major.
///
/// # Panics
/// If the shapes do not fit.
#[allow(unsafe_code, reason = "the library takes raw pointers")]
pub fn matmul<F: Float>(out: &mut [F], store: Store, a: Matrix<F>, b: Matrix<F>) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(a.cols, b.rows, "inner dimensions of a product");
    assert_eq!(out.len(), m * n, "a {m} x {n} product into {} elements", out.len());
    if store == Store::Replace && k == 0 {
        out.fill(F::ZERO);
    }
    let ((a_row, a_col), (b_row, b_col)) = (a.strides(), b.strides());
    for from in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - from);
        let (a_at, b_at) = (from as isize * a_col, from as isize * b_row);
        let add = store == Store::Add || from > 0;
        // SAFETY: `Matrix::new` and the asserts above hold every index (row, column) of the three operands inside
        // its slice: `a` reads rows 0..m and columns from..from + depth of m x k, `b` rows from..from + depth and
        // columns 0..n of k x n, and `out` is m x n with row stride n. `out` is borrowed mutably, so it overlaps
        // neither. f32 and f64, the only implementors of `Float` (`Element` is sealed), are supported by `gemm`.
        unsafe {
            gemm(
                m,
                n,
                depth,
                out.as_mut_ptr(),
                1,
                n as isize,
                add,
                a.data.as_ptr().wrapping_offset(a_at),
                a_col,
                a_row,
                b.data.as_ptr().wrapping_offset(b_at),
                b_col,
                b_row,
                F::ONE,
                F::ONE,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

/// What an m x k by k x n product costs.
pub(super) fn cost<F>(m: usize, n: usize, k: usize) -> Cost {
    Cost::launch(2 * m * n * k, m * k + k * n + m * n, size_of::<F>())
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
