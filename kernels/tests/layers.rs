//! Batch norms: running statistics, and a batch in parts. Rectifiers: NaN, and in place.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_kernels::nn::{BatchNormShape, ReluKernel};

const SHAPE: BatchNormShape = BatchNormShape { channels: 3, plane: 4 };
const N: usize = 5;

/// Numbers in -1..1 that differ by `seed`.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 37 + seed * 53) % 101) as f64 / 50.5 - 1.0).collect()
}

fn run(x: &[f64], w: &[f64], b: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut running, mut saved, mut y) = (vec![0.0, 0.0, 0.0, 1.0, 1.0, 1.0], vec![0.0; 6], vec![0.0; 60]);
    SHAPE.forward(N, x, w, b, &mut running, &mut saved, &mut y);
    (y, saved, running)
}

#[test]
fn running_statistics_are_unbiased() {
    let x = numbers(60, 1);
    let (_, _, running) = run(&x, &[1.0; 3], &[0.0; 3]);
    let first: Vec<f64> = (0..N).flat_map(|n| x[n * 12..n * 12 + 4].to_vec()).collect();
    let mean = first.iter().sum::<f64>() / 20.0;
    let var = first.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 19.0;
    assert!((running[0] - 0.1 * mean).abs() < 1e-15);
    assert!((running[3] - (0.9 + 0.1 * var)).abs() < 1e-15);
}

/// Batch parts of 3, 0 and 2 samples, normalised by their totals, give the same as the batch of 5.
#[test]
fn parts_together_are_the_batch() {
    let (x, w, b) = (numbers(60, 1), numbers(3, 2), numbers(3, 3));
    let (want, want_saved, want_running) = run(&x, &w, &b);
    let parts = [(3, &x[..36]), (0, &x[36..36]), (2, &x[36..])];
    let mut totals = vec![0.0; 7];
    for (n, part) in parts {
        let mut sums = vec![9.0; 7];
        SHAPE.sums(n, part, &mut sums);
        totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
    }
    let mut all = Vec::new();
    let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-14);
    for (n, part) in parts {
        let (mut running, mut saved, mut y) =
            (vec![0.0, 0.0, 0.0, 1.0, 1.0, 1.0], vec![0.0; 6], vec![0.0; part.len()]);
        SHAPE.forward_by(n, part, &w, &b, &totals, &mut running, &mut saved, &mut y);
        assert!(close(&running, &want_running) && close(&saved, &want_saved));
        all.extend(y);
    }
    assert!(all.len() == 60 && close(&all, &want));
}

/// The first two channels each hold an infinity, a NaN, or a number whose square overflows f32. The third channel's statistics
/// must still be updated.
#[test]
fn running_statistics_stay_finite() {
    let start = [0.5f32, 0.5, 0.5, 2.0, 2.0, 2.0];
    for bad in [f32::INFINITY, f32::NAN, 3e38] {
        let mut x: Vec<f32> = numbers(60, 1).into_iter().map(|x| x as f32).collect();
        (x[0], x[4]) = (bad, -bad);
        let (mut saved, mut y, mut sums) = ([0.0; 6], [0.0; 60], [0.0; 7]);
        let (mut whole, mut parts) = (start, start);
        SHAPE.forward(N, &x, &[1.0; 3], &[0.0; 3], &mut whole, &mut saved, &mut y);
        SHAPE.sums(N, &x, &mut sums);
        SHAPE.forward_by(N, &x, &[1.0; 3], &[0.0; 3], &sums, &mut parts, &mut saved, &mut y);
        for running in [whole, parts] {
            assert_eq!([&running[..2], &running[3..5]], [&start[..2], &start[3..5]], "{bad}");
            assert!(running[2] != 0.5 && running[5] != 2.0 && running[5].is_finite());
        }
    }
}

#[test]
fn evaluation_uses_the_running_statistics() {
    let x = numbers(60, 1);
    let mut y = vec![0.0; 60];
    SHAPE.evaluate(N, &x, &[2.0; 3], &[1.0; 3], &[0.5, 0.5, 0.5, 3.0, 3.0, 3.0], &mut y);
    assert!((y[7] - ((x[7] - 0.5) / (3.0f64 + 1e-5).sqrt() * 2.0 + 1.0)).abs() < 1e-14);
}

#[test]
fn nan_is_not_hidden() {
    let mut y = [0.0f32];
    ReluKernel::forward(&[f32::NAN], &mut y);
    assert!(y[0].is_nan());
}

#[test]
fn in_place_is_the_same() {
    let x = [&numbers(50, 1)[..], &[f64::NAN, f64::NEG_INFINITY, -0.0]].concat();
    let (mut y, mut dx, dy) = (x.clone(), numbers(53, 2), numbers(53, 2));
    ReluKernel::forward_in_place(&mut y);
    ReluKernel::backward_in_place(&y, &mut dx);
    let (mut want_y, mut want_dx) = (vec![9.0; 53], vec![9.0; 53]);
    ReluKernel::forward(&x, &mut want_y);
    ReluKernel::backward(&want_y, &dy, &mut want_dx);
    let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!((bits(&y), bits(&dx)), (bits(&want_y), bits(&want_dx)));
}
