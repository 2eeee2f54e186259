//! The hyperbolic tangent, in f64 by `libm`, so that it has the same bits on every host.

use super::thread_pool::share_rows;
use super::{Float, OpCost};

/// The activation tanh, which has no shape and no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TanhKernel;

impl TanhKernel {
    /// Computes `y` from `x`.
    pub fn forward<F: Float>(x: &[F], y: &mut [F]) {
        assert_eq!(x.len(), y.len());
        share_rows(y, 1, |range, y| {
            y.iter_mut().zip(&x[range]).for_each(|(y, x)| *y = F::from_f64(libm::tanh(x.to_f64())));
        });
    }

    /// Computes the gradient `dx` of the input from the output `y` and `dy`.
    pub fn backward<F: Float>(y: &[F], dy: &[F], dx: &mut [F]) {
        assert!(y.len() == dy.len() && dy.len() == dx.len());
        share_rows(dx, 1, |range, dx| {
            for ((dx, &dy), &y) in dx.iter_mut().zip(&dy[range.clone()]).zip(&y[range]) {
                *dx = dy * (F::ONE - y * y);
            }
        });
    }

    /// The costs of the forward and the backward pass over `elements`.
    pub fn costs<F: Float>(elements: usize) -> [OpCost; 2] {
        [(30, 2), (3, 3)]
            .map(|(flops, moved)| OpCost::launch(flops * elements, moved * elements, size_of::<F>()))
    }
}
