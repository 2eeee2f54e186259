//! The sum of two branches, as in a residual network (K. He et al., CVPR 2016).
//!
//! ```text
//! y = a + b        da = db = dy
//! ```

use super::simd::vectorised;
use super::thread_pool::share_rows;
use super::{Float, OpCost};

vectorised! {
    fn sum_of<F>(a: &[F], b: &[F], y: &mut [F]) {
        y.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = a + b);
    }

    fn more<F>(a: &[F], y: &mut [F]) {
        y.iter_mut().zip(a).for_each(|(y, &a)| *y += a);
    }
}

/// Computes `y = a + b`.
pub fn add<F: Float>(a: &[F], b: &[F], y: &mut [F]) {
    assert!(a.len() == y.len() && b.len() == y.len());
    share_rows(y, 1, |range, y| sum_of(&a[range.clone()], &b[range], y));
}

/// Computes `y += a`.
pub fn add_to<F: Float>(y: &mut [F], a: &[F]) {
    assert_eq!(a.len(), y.len());
    share_rows(y, 1, |range, y| more(&a[range], y));
}

/// The cost of [`add`] over `elements`.
pub fn add_cost<F: Float>(elements: usize) -> OpCost {
    OpCost::launch(elements, 3 * elements, size_of::<F>())
}
