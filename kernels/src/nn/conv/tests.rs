//! Tests of convolutions against their definition, and of their gradients against finite differences.

use super::Conv2dShape;
use crate::nn::Float;
use crate::nn::gradcheck::{check, dot, numbers};
use proptest::prelude::*;

/// The convolution by its definition, pixel by pixel.
pub fn direct(s: &Conv2dShape, n: usize, x: &[f64], w: &[f64]) -> Vec<f64> {
    let ((h, wd), (p, q), k) = (s.picture, s.output_picture(), s.kernel);
    let mut y = Vec::new();
    for sample in 0..n {
        for o in 0..s.outputs {
            for (r, t) in (0..p).flat_map(|r| (0..q).map(move |t| (r, t))) {
                let mut sum = 0.0;
                for (c, i, j) in
                    (0..s.inputs).flat_map(|c| (0..k).flat_map(move |i| (0..k).map(move |j| (c, i, j))))
                {
                    let (a, b) = (r * s.stride + i, t * s.stride + j);
                    if a >= s.padding && b >= s.padding && a - s.padding < h && b - s.padding < wd {
                        let pixel = ((sample * s.inputs + c) * h + a - s.padding) * wd + b - s.padding;
                        let (per, each) = (s.inputs / s.groups, s.outputs / s.groups);
                        if c / per == o / each {
                            sum += x[pixel] * w[((o * per + c % per) * k + i) * k + j];
                        }
                    }
                }
                y.push(sum);
            }
        }
    }
    y
}

fn shapes() -> impl Strategy<Value = Conv2dShape> {
    (1usize..3, 1usize..4, 1usize..6, 1usize..6, 1usize..4, 1usize..4, 0usize..3, 1usize..4)
        .prop_map(|(inputs, outputs, h, w, kernel, stride, padding, groups)| {
            let (picture, inputs, outputs) = ((h, w), inputs * groups, outputs * groups);
            Conv2dShape { inputs, outputs, picture, kernel, stride, padding, groups }
        })
        .prop_filter("the kernel fits", |s| s.kernel <= s.picture.0.min(s.picture.1) + 2 * s.padding)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn equals_the_definition_and_its_gradients(s in shapes(), n in 1usize..3) {
        let x = numbers(n * s.input(), 1);
        let w = numbers(s.outputs * s.patch(), 2);
        let run = |x: &[f64], w: &[f64]| {
            let mut y = vec![0.0; n * s.outputs * s.pixels()];
            let mut work = vec![7.0; s.work(n)];
            s.forward(n, x, w, &mut work, &mut y);
            (y, work)
        };
        let (y, mut work) = run(&x, &w);
        let want = direct(&s, n, &x, &w);
        prop_assert!(y.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-12));

        let r = numbers(y.len(), 3);
        let (mut dw, mut dx) = (vec![9.0; w.len()], vec![9.0; x.len()]);
        s.backward_params(n, &x, &mut work, &r, &mut dw);
        s.backward_input(n, &w, &r, &mut work, &mut dx);
        check("x", &x, &dx, |x| dot(&run(x, &w).0, &r));
        check("w", &w, &dw, |w| dot(&run(&x, w).0, &r));
    }
}

#[test]
fn cost_is_two_per_tap() {
    let s =
        Conv2dShape { inputs: 16, outputs: 32, picture: (8, 8), kernel: 3, stride: 1, padding: 1, groups: 1 };
    assert_eq!(s.forward_cost::<f32>(10).flops, 10 * 2 * 32 * 64 * 16 * 9);
}

/// The output is too small for Winograd's tiles but the input is not: the backward pass must not use the tiles either.
#[test]
fn a_convolution_too_small_for_winograd_one_way_has_its_gradient() {
    for picture in [(5, 5), (4, 7)] {
        let s = Conv2dShape { inputs: 64, outputs: 64, picture, kernel: 3, stride: 1, padding: 0, groups: 1 };
        let (n, area) = (2, 9);
        let (x, w) = (numbers(n * s.input(), 1), numbers(s.weights(), 2));
        let r = numbers(n * s.outputs * s.pixels(), 3);
        let (mut y, mut work) = (vec![9.0; r.len()], vec![7.0; s.work(n)]);
        let mut dx = vec![9.0; x.len()];
        s.forward(n, &x, &w, &mut work, &mut y);
        s.backward_input(n, &w, &r, &mut work, &mut dx);
        let transposed: Vec<f64> = (0..w.len())
            .map(|at| (at / (64 * area), at / area % 64, at % area))
            .map(|(c, o, tap)| w[(o * 64 + c) * area + area - 1 - tap])
            .collect();
        let back = Conv2dShape { picture: s.output_picture(), padding: 2, ..s };
        for (got, want) in [(y, direct(&s, n, &x, &w)), (dx, direct(&back, n, &r, &transposed))] {
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-11), "{picture:?}");
        }
    }
}

/// Covers whole tiles, panels and depths, in f32 and f64, with several numbers of threads.
#[test]
fn the_same_bits_on_any_number_of_threads_and_near_f64() {
    let shape = |picture, stride, kernel| Conv2dShape {
        inputs: 24,
        outputs: 56,
        picture,
        kernel,
        stride,
        padding: kernel / 2,
        groups: 1,
    };
    for s in [
        shape((16, 16), 1, 3),
        shape((4, 4), 1, 3),
        shape((8, 8), 2, 3),
        shape((8, 8), 2, 1),
        shape((9, 11), 1, 5),
    ] {
        let n = 6;
        let (x, w) = (numbers(n * s.input(), 1), numbers(s.weights(), 2));
        let r = numbers(n * s.outputs * s.pixels(), 3);
        let narrow = |a: &[f64]| a.iter().map(|&a| a as f32).collect::<Vec<f32>>();
        fn all<F: Float>(s: &Conv2dShape, n: usize, x: &[F], w: &[F], r: &[F], threads: usize) -> Vec<F> {
            let mut work = vec![F::ONE; s.work(n)];
            let (mut y, mut dw, mut dx) =
                (vec![F::ONE; r.len()], vec![F::ONE; w.len()], vec![F::ONE; x.len()]);
            crate::nn::ThreadPool::new(threads).enter(|| {
                s.forward(n, x, w, &mut work, &mut y);
                s.backward_params(n, x, &mut work, r, &mut dw);
                s.backward_input(n, w, r, &mut work, &mut dx);
            });
            [y, dw, dx].concat()
        }
        let exact = all(&s, n, &x, &w, &r, 1);
        let want = all(&s, n, &narrow(&x), &narrow(&w), &narrow(&r), 1);
        for threads in [2, 3] {
            assert!(all(&s, n, &narrow(&x), &narrow(&w), &narrow(&r), threads) == want);
        }
        let worst = exact.iter().zip(&want).map(|(a, &b)| (a - f64::from(b)).abs()).fold(0.0, f64::max);
        assert!(worst < 3e-4, "{s:?}: {worst}");
        let y = direct(&s, n, &x, &w);
        assert!(exact.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-11));
    }
}
