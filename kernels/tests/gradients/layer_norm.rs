//! Layer norm.

use crate::gradcheck::{check, dot, numbers};
use allfold_kernels::nn::LayerNormShape;

#[test]
fn gradients() {
    let shape = LayerNormShape { width: 7, eps: LayerNormShape::EPS };
    let (x, w, b, r) = (numbers(35, 1), numbers(7, 2), numbers(7, 3), numbers(35, 4));
    let run = |x: &[f64], w: &[f64], b: &[f64]| {
        let (mut saved, mut y) = (vec![0.0; 10], vec![0.0; 35]);
        shape.forward(x, w, b, &mut saved, &mut y);
        (y, saved)
    };
    let (_, saved) = run(&x, &w, &b);
    let (mut dx, mut dw, mut db) = (vec![9.0; 35], vec![9.0; 7], vec![9.0; 7]);
    shape.backward_params(&x, &saved, &r, &mut dw, &mut db);
    shape.backward_input(&x, &w, &saved, &r, &mut dx);
    check("x", &x, &dx, |x| dot(&run(x, &w, &b).0, &r));
    check("w", &w, &dw, |w| dot(&run(&x, w, &b).0, &r));
    check("b", &b, &db, |b| dot(&run(&x, &w, b).0, &r));
}

#[test]
fn rows_have_mean_0_and_deviation_1() {
    let (x, mut saved, mut y) = (numbers(64, 1), vec![0.0; 2], vec![0.0; 64]);
    LayerNormShape { width: 64, eps: LayerNormShape::EPS }
        .forward(&x, &[1.0; 64], &[0.0; 64], &mut saved, &mut y);
    assert!(y.iter().sum::<f64>().abs() < 1e-12);
    assert!((y.iter().map(|y| y * y).sum::<f64>() / 64.0 - 1.0).abs() < 1e-4);
}
