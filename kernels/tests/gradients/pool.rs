//! Pooling.

use crate::gradcheck::{check, dot, numbers};
use allfold_kernels::nn::PoolShape;

const SHAPES: [PoolShape; 4] = [
    PoolShape { channels: 2, picture: (7, 6), window: 3, stride: 2, padding: 1 },
    PoolShape { channels: 2, picture: (4, 6), window: 2, stride: 2, padding: 0 },
    PoolShape { channels: 1, picture: (5, 5), window: 3, stride: 1, padding: 0 },
    PoolShape { channels: 3, picture: (7, 4), window: 2, stride: 3, padding: 0 },
];

#[test]
fn gradients() {
    for s in SHAPES {
        let ((rows, columns), (p, q)) = (s.picture, s.output_picture());
        let (count, out) = (2 * s.channels * rows * columns, 2 * s.channels * p * q);
        let (x, r) = (numbers(count, 1), numbers(out, 2));
        let max = |x: &[f64]| {
            let (mut y, mut winners) = (vec![0.0; out], vec![0; out]);
            s.max_forward(2, x, &mut y, &mut winners);
            (dot(&y, &r), winners)
        };
        let mean = |x: &[f64]| {
            let mut y = vec![0.0; out];
            s.mean_forward(2, x, &mut y);
            dot(&y, &r)
        };
        let mut dx = vec![9.0; count];
        s.max_backward(2, &max(&x).1, &r, &mut dx);
        check("max", &x, &dx, |x| max(x).0);
        if s.padding == 0 {
            s.mean_backward(2, &r, &mut dx);
            check("mean", &x, &dx, mean);
        }
    }
}

#[test]
fn global_mean_gradients() {
    let (x, r) = (numbers(60, 1), numbers(5, 2));
    let run = |x: &[f64]| {
        let mut y = vec![0.0; 5];
        PoolShape::global_mean(12, x, &mut y);
        dot(&y, &r)
    };
    let mut dx = vec![9.0; 60];
    PoolShape::global_mean_backward(12, &r, &mut dx);
    check("x", &x, &dx, run);
}

#[test]
fn the_first_of_equal_maxima_wins() {
    let s = PoolShape { channels: 1, picture: (2, 2), window: 2, stride: 2, padding: 0 };
    let (mut y, mut winners) = ([0.0f32], [9]);
    s.max_forward(1, &[1.0, 3.0, 3.0, 2.0], &mut y, &mut winners);
    assert_eq!((y[0], winners[0]), (3.0, 1));
}
