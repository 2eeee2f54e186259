//! Tests of Winograd's products against the definition of a convolution.

use super::Winograd;
use crate::nn::conv::Conv2dShape;
use crate::nn::conv::tests::direct;
use crate::nn::gradcheck::{dot, numbers};
use crate::nn::{Float, ThreadPool};

fn shape(picture: (usize, usize), padding: usize) -> Conv2dShape {
    Conv2dShape { inputs: 64, outputs: 80, picture, kernel: 3, stride: 1, padding, groups: 1 }
}

/// Compares the forward pass with the definition. A convolution is linear in its input and in its weight, so both gradients are
/// checked in random directions.
#[test]
fn equals_the_definition_and_its_gradients() {
    let wide = [((4, 4), 1, 3), ((5, 7), 1, 2), ((6, 7), 0, 2), ((4, 3), 2, 2), ((12, 12), 1, 9)];
    for (picture, padding, n) in wide {
        let s = shape(picture, padding);
        assert!(Winograd::of(&s).is_some());
        let (rows, cols) = s.output_picture();
        let (x, w) = (numbers(n * s.input(), 1), numbers(s.weights(), 2));
        let (dx, dw) = (numbers(x.len(), 3), numbers(w.len(), 4));
        let dy = numbers(n * s.outputs * rows * cols, 5);
        let mut work = vec![7.0; s.work(n)];
        let (mut y, mut gx, mut gw) = (vec![9.0; dy.len()], vec![9.0; x.len()], vec![9.0; w.len()]);
        s.forward(n, &x, &w, &mut work, &mut y);
        s.backward_params(n, &x, &mut work, &dy, &mut gw);
        s.backward_input(n, &w, &dy, &mut work, &mut gx);
        let want = direct(&s, n, &x, &w);
        assert!(y.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-11), "{picture:?} {padding}");
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9 * (1.0 + b.abs());
        let by_x = dot(&direct(&s, n, &dx, &w), &dy);
        assert!(near(dot(&gx, &dx), by_x), "{picture:?} {padding}: {} {by_x}", dot(&gx, &dx));
        let by_w = dot(&direct(&s, n, &x, &dw), &dy);
        assert!(near(dot(&gw, &dw), by_w), "{picture:?} {padding}: {} {by_w}", dot(&gw, &dw));
    }
}

#[test]
fn the_same_bits_on_any_number_of_threads_and_near_f64() {
    fn all<F: Float>(threads: usize) -> Vec<F> {
        let (s, n) = (shape((8, 8), 1), 35);
        let drawn = |count, seed| numbers(count, seed).into_iter().map(F::from_f64).collect::<Vec<F>>();
        let (x, w, dy) = (drawn(n * s.input(), 1), drawn(s.weights(), 2), drawn(n * 80 * 64, 3));
        let mut work = vec![F::ONE; s.work(n)];
        let (mut y, mut dx, mut dw) = (vec![F::ONE; dy.len()], vec![F::ONE; x.len()], vec![F::ONE; w.len()]);
        ThreadPool::new(threads).enter(|| {
            s.forward(n, &x, &w, &mut work, &mut y);
            s.backward_params(n, &x, &mut work, &dy, &mut dw);
            s.backward_input(n, &w, &dy, &mut work, &mut dx);
        });
        [y, dx, dw].concat()
    }
    let (exact, want) = (all::<f64>(1), all::<f32>(1));
    assert!([2, 3].iter().all(|&threads| all::<f32>(threads) == want));
    let worst = exact.iter().zip(&want).map(|(a, &b)| (a - f64::from(b)).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-3, "{worst}");
}
