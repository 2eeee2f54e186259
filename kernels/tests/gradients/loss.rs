//! Losses.

use crate::gradcheck::{check, numbers};
use allfold_kernels::nn::{Loss, LossKind};

#[test]
fn gradients() {
    for kind in [LossKind::CrossEntropy, LossKind::Mse] {
        let (loss, labels, x) = (Loss { classes: 5, kind }, [0, 4, 2, 2], numbers(20, 7));
        let mut dx = vec![9.0; 20];
        loss.forward_backward(&x, &labels, 1.0, &mut dx);
        check("x", &x, &dx, |x| loss.forward_backward(x, &labels, 1.0, &mut [0.0; 20]));
    }
}

#[test]
fn equal_logits_cost_the_logarithm_of_their_number() {
    let mut dx = [0.0; 8];
    let loss = Loss::cross_entropy(4).forward_backward(&[1e30f64; 8], &[1, 2], 1.0, &mut dx);
    assert!((loss - 4f64.ln()).abs() < 1e-15);
    assert_eq!(dx[1], (0.25 - 1.0) / 2.0);
}

#[test]
fn the_first_of_equal_logits_counts() {
    assert_eq!(Loss::cross_entropy(2).correct(&[1.0f32, 1.0, 0.0, 1.0, 2.0, 1.0], &[0, 1, 1]), 2);
}
