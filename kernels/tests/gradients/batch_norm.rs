//! Batch norm.

use crate::gradcheck::{check, dot, numbers};
use allfold_kernels::nn::BatchNormShape;

const SHAPE: BatchNormShape = BatchNormShape { channels: 3, plane: 4 };
const N: usize = 5;

fn run(x: &[f64], w: &[f64], b: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (mut running, mut saved, mut y) = (vec![0.0; 6], vec![0.0; 6], vec![0.0; 60]);
    SHAPE.forward(N, x, w, b, &mut running, &mut saved, &mut y);
    (y, saved)
}

#[test]
fn gradients() {
    let (x, w, b, r) = (numbers(60, 1), numbers(3, 2), numbers(3, 3), numbers(60, 4));
    let (_, saved) = run(&x, &w, &b);
    let (mut dw, mut db, mut dx) = (vec![9.0; 3], vec![9.0; 3], vec![9.0; 60]);
    SHAPE.backward_params(N, &x, &saved, &r, &mut dw, &mut db);
    SHAPE.backward_input(N, &x, &w, &saved, &r, (20.0, &dw, &db), &mut dx);
    check("x", &x, &dx, |x| dot(&run(x, &w, &b).0, &r));
    check("w", &w, &dw, |w| dot(&run(&x, w, &b).0, &r));
    check("b", &b, &db, |b| dot(&run(&x, &w, b).0, &r));
}
