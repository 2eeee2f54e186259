//! Rectifiers.

use crate::gradcheck::{check, dot, numbers};
use allfold_kernels::nn::ReluKernel;

#[test]
fn gradients() {
    let (x, r) = (numbers(50, 1), numbers(50, 2));
    let (mut y, mut dx) = (vec![0.0; 50], vec![9.0; 50]);
    ReluKernel::forward(&x, &mut y);
    ReluKernel::backward(&y, &r, &mut dx);
    let run = |x: &[f64]| {
        let mut y = vec![0.0; 50];
        ReluKernel::forward(x, &mut y);
        dot(&y, &r)
    };
    check("x", &x, &dx, run);
}
