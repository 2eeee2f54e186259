//! The Gaussian error linear unit (D. Hendrycks and K. Gimpel, arXiv:1606.08415), by the error function like PyTorch's default.
//!
//! ```text
//! y = x P(x)      dx = dy (P(x) + x p(x))          P, p: the normal distribution's integral and density
//! ```

use super::simd::vectorised;
use super::thread_pool::share_rows;
use super::{Float, OpCost};

/// The GELU activation, which has no shape and no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeluKernel;

vectorised! {
    fn forward<F>(x: &[F], y: &mut [F]) {
        for (y, &x) in y.iter_mut().zip(x) {
            let (tail, _) = x.tail();
            *y = x * if x > F::ZERO { F::ONE - tail } else { tail };
        }
    }

    fn backward<F>(x: &[F], dy: &[F], dx: &mut [F]) {
        for ((dx, &dy), &x) in dx.iter_mut().zip(dy).zip(x) {
            let (tail, density) = x.tail();
            let share = if x > F::ZERO { F::ONE - tail } else { tail };
            *dx = dy * x.mul_add(density, share);
        }
    }
}

impl GeluKernel {
    /// Computes `y` from `x`.
    pub fn forward<F: Float>(x: &[F], y: &mut [F]) {
        assert_eq!(x.len(), y.len());
        share_rows(y, 1, |range, y| forward(&x[range], y));
    }

    /// Computes the gradient `dx` of the input from `x` and `dy`.
    pub fn backward<F: Float>(x: &[F], dy: &[F], dx: &mut [F]) {
        assert!(x.len() == dy.len() && dy.len() == dx.len());
        share_rows(dx, 1, |range, dx| backward(&x[range.clone()], &dy[range], dx));
    }

    /// The cost of [`GeluKernel::forward`] over `elements`.
    pub fn forward_cost<F: Float>(elements: usize) -> OpCost {
        OpCost::launch(30 * elements, 2 * elements, size_of::<F>())
    }

    /// The cost of [`GeluKernel::backward`] over `elements`.
    pub fn backward_cost<F: Float>(elements: usize) -> OpCost {
        OpCost::launch(34 * elements, 3 * elements, size_of::<F>())
    }
}
