//! Clipping by the norm of all gradients together (R. Pascanu, T. Mikolov and Y. Bengio, ICML 2013), as PyTorch's
//! `clip_grad_norm_` does it.
//!
//! ```text
//! grads = grads min(1, limit / (|grads| + 1e-6))
//! ```
//!
//! Clipping follows the exchange (and unscaling), so every rank of a data-parallel run has the same norm.

use allfold_kernels::nn::{Float, OpCost};

/// Bounds the norm of all gradients, which is `norm`, by `limit`; `grads` are some of them.
pub fn clip<F: Float>(grads: &mut [F], norm: f64, limit: f64) {
    let scale = limit / (norm + 1e-6);
    // A norm of NaN makes all gradients NaN, so that the error is noticed.
    if scale < 1.0 || scale.is_nan() {
        let scale = F::from_f64(scale);
        grads.iter_mut().for_each(|g| *g = *g * scale);
    }
}

/// Cost of [`clip`] over `elements`, with their norm.
pub fn cost<F>(elements: usize) -> OpCost {
    OpCost::launch(3 * elements, 3 * elements, size_of::<F>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_kernels::nn::norm;

    #[test]
    fn long_gradients_are_shortened_and_short_ones_left_alone() {
        let clipped = |mut grads: [f64; 2]| {
            let before = norm(&grads);
            clip(&mut grads, before, 1.0);
            (before, grads)
        };
        let (before, grads) = clipped([3.0, 4.0]);
        assert!(before == 5.0 && (norm(&grads) - 1.0).abs() < 1e-6);
        assert!((grads[0] / grads[1] - 0.75).abs() < 1e-15);
        assert_eq!(clipped([0.3, 0.4]), (0.5, [0.3, 0.4]));
        let (before, grads) = clipped([f64::NAN, 1.0]);
        assert!(before.is_nan() && grads[1].is_nan());
    }
}
