//! The hyperbolic tangent.

use crate::gradcheck::{check, dot, numbers};
use allfold_kernels::nn::TanhKernel;

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
