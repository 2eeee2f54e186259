//! Clipping by the norm of all gradients together (R. Pascanu, T. Mikolov and Y. Bengio, ICML 2013), as PyTorch's
//! `clip_grad_norm_` does it.
//!
//! ```text
//! grads = grads min(1, limit / (|grads| + 1e-6))
//! ```
//!
//! Clipping follows the exchange (and unscaling), so every rank of a data-parallel run has the same norm.

use allfold_kernels::nn::{Float, OpCost, norm};

/// Bounds the norm of `grads` by `limit`; returns the norm before.
pub fn clip<F: Float>(grads: &mut [F], limit: f64) -> f64 {
    let before = norm(grads);
    let scale = limit / (before + 1e-6);
    // A norm of NaN makes all gradients NaN, so that the error is noticed.
    if scale < 1.0 || scale.is_nan() {
        let scale = F::from_f64(scale);
        grads.iter_mut().for_each(|g| *g = *g * scale);
    }
    before
}

/// Cost of [`clip`] over `elements`.
pub fn cost<F>(elements: usize) -> OpCost {
    OpCost::launch(3 * elements, 3 * elements, size_of::<F>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_gradients_are_shortened_and_short_ones_left_alone() {
        let mut grads = [3.0f64, 4.0];
        assert_eq!(clip(&mut grads, 1.0), 5.0);
        assert!((norm(&grads) - 1.0).abs() < 1e-6 && (grads[0] / grads[1] - 0.75).abs() < 1e-15);
        let mut grads = [0.3, 0.4];
        assert_eq!((clip(&mut grads, 1.0), grads), (0.5, [0.3, 0.4]));
        let mut grads = [f64::NAN, 1.0];
        assert!(clip(&mut grads, 1.0).is_nan() && grads[1].is_nan());
    }
}
