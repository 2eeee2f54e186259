//! The rectified linear unit, applied to each element.
//!
//! ```text
//! y = max(x, 0)          dx = dy where y > 0, else 0          NaN stays NaN
//! ```

use super::simd::vectorised;
use super::thread_pool::share_rows;
use super::{Float, OpCost};

vectorised! {
    fn forward<F>(x: &[F], y: &mut [F]) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = if x < F::ZERO { F::ZERO } else { x });
    }

    fn forward_in_place<F>(y: &mut [F]) {
        y.iter_mut().for_each(|y| *y = if *y < F::ZERO { F::ZERO } else { *y });
    }

    fn backward<F>(y: &[F], dy: &[F], dx: &mut [F]) {
        for ((dx, &dy), &y) in dx.iter_mut().zip(dy).zip(y) {
            *dx = if y > F::ZERO { dy } else { F::ZERO };
        }
    }

    fn backward_in_place<F>(y: &[F], dx: &mut [F]) {
        dx.iter_mut().zip(y).for_each(|(dx, &y)| *dx = if y > F::ZERO { *dx } else { F::ZERO });
    }
}

/// The ReLU activation, which has no shape and no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReluKernel;

impl ReluKernel {
    /// Computes `y` from `x`.
    pub fn forward<F: Float>(x: &[F], y: &mut [F]) {
        assert_eq!(x.len(), y.len());
        share_rows(y, 1, |range, y| forward(&x[range], y));
    }

    /// Like [`ReluKernel::forward`], in place: `y` holds the input before and the output after the call.
    pub fn forward_in_place<F: Float>(y: &mut [F]) {
        share_rows(y, 1, |_, y| forward_in_place(y));
    }

    /// Computes the gradient `dx` of the input from the output `y` and `dy`.
    pub fn backward<F: Float>(y: &[F], dy: &[F], dx: &mut [F]) {
        assert!(y.len() == dy.len() && dy.len() == dx.len());
        share_rows(dx, 1, |range, dx| backward(&y[range.clone()], &dy[range], dx));
    }

    /// Like [`ReluKernel::backward`], in place: `dx` holds the gradient of the output before the call.
    pub fn backward_in_place<F: Float>(y: &[F], dx: &mut [F]) {
        assert_eq!(y.len(), dx.len());
        share_rows(dx, 1, |range, dx| backward_in_place(&y[range], dx));
    }

    /// The cost of [`ReluKernel::forward`] over `elements`.
    pub fn forward_cost<F: Float>(elements: usize) -> OpCost {
        OpCost::launch(elements, 2 * elements, size_of::<F>())
    }

    /// The cost of [`ReluKernel::backward`] over `elements`.
    pub fn backward_cost<F: Float>(elements: usize) -> OpCost {
        OpCost::launch(elements, 3 * elements, size_of::<F>())
    }
}
