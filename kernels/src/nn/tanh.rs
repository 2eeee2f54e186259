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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::gradcheck::{check, dot, numbers};

    #[test]
    fn gradients_and_known_values() {
        let (x, r) = (numbers(20, 1), numbers(20, 2));
        let run = |x: &[f64]| {
            let mut y = vec![0.0; x.len()];
            TanhKernel::forward(x, &mut y);
            y
        };
        let mut dx = vec![9.0; 20];
        TanhKernel::backward(&run(&x), &r, &mut dx);
        check("x", &x, &dx, |x| dot(&run(x), &r));
        // tanh 1, by M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions", 1964, table 4.15.
        assert!((run(&[1.0])[0] - 0.761_594_155_955_764_9).abs() < 1e-15 && run(&[-40.0]) == [-1.0]);
    }
}
