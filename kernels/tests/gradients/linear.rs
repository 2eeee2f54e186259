//! Fully connected layers.

use crate::gradcheck::{check, dot, numbers};
use allfold_kernels::nn::LinearShape;

#[test]
fn gradients() {
    let (shape, n) = (LinearShape { inputs: 5, outputs: 3 }, 4);
    let (x, w, b, r) = (numbers(20, 1), numbers(15, 2), numbers(3, 3), numbers(12, 4));
    let run = |x: &[f64], w: &[f64], b: &[f64]| {
        let mut y = vec![0.0; 12];
        shape.forward(n, x, w, b, &mut y);
        dot(&y, &r)
    };
    let (mut dx, mut dw, mut db) = (vec![9.0; 20], vec![9.0; 15], vec![9.0; 3]);
    shape.backward_params(n, &x, &r, &mut dw, &mut db);
    shape.backward_input(n, &w, &r, &mut dx);
    check("x", &x, &dx, |x| run(x, &w, &b));
    check("w", &w, &dw, |w| run(&x, w, &b));
    check("b", &b, &db, |b| run(&x, &w, b));
}

#[test]
fn cost_counts_two_per_multiply_add() {
    let cost = LinearShape { inputs: 64, outputs: 10 }.forward_cost::<f32>(32);
    assert_eq!(cost.flops, 2 * 32 * 64 * 10 + 32 * 10);
    assert_eq!(cost.bytes, 4 * (32 * 64 + 64 * 10 + 32 * 10 + 2 * 32 * 10 + 10));
}
