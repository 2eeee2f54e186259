//! Dropout: its share of zeros, and draws that do not depend on how samples are shared.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_kernels::nn::{DropoutKernel, DropoutStream, ThreadPool};

#[test]
fn the_share_of_zeros_is_right_and_does_not_depend_on_threads() {
    let x = vec![1.0f32; 100_003];
    let stream = |step| DropoutStream { seed: 7, step, ..DropoutStream::default() };
    let run = |threads, step| {
        let mut y = vec![9.0; x.len()];
        ThreadPool::new(threads)
            .enter(|| DropoutKernel { share: 0.25 }.apply(stream(step), x.len(), &x, &mut y));
        y
    };
    let y = run(1, 0);
    assert!(y.iter().all(|&y| y == 0.0 || y == 1.0 / 0.75));
    let zeros = y.iter().filter(|&&y| y == 0.0).count() as f64 / x.len() as f64;
    assert!((zeros - 0.25).abs() < 0.005, "{zeros}");
    assert_eq!(y, run(3, 0));
    assert_ne!(y, run(1, 1));
}

/// Whether an element is dropped does not depend on how samples and their elements are divided among ranks.
#[test]
fn parts_have_the_draws_of_the_whole() {
    const WIDTH: usize = 26;
    let x: Vec<f64> = (0..6 * WIDTH).map(|i| i as f64 + 1.0).collect();
    let dropout = DropoutKernel { share: 0.4 };
    let whole = DropoutStream { seed: 1 << 40 | 5, step: 3, layer: 2, first: 0, stride: 1 };
    let mut want = vec![0.0; x.len()];
    dropout.apply(whole, WIDTH, &x, &mut want);
    // Samples 1, 3 and 5 of the step, on the second of two ranks.
    let odd =
        |all: &[f64]| -> Vec<f64> { all.chunks_exact(WIDTH).skip(1).step_by(2).flatten().copied().collect() };
    let second = DropoutStream { first: 1, stride: 2, ..whole };
    let mut y = vec![0.0; 3 * WIDTH];
    dropout.apply(second, WIDTH, &odd(&x), &mut y);
    assert_eq!(y, odd(&want));
    // Samples 4 and 5, in a later micro-batch.
    let mut y = vec![0.0; 2 * WIDTH];
    dropout.apply(DropoutStream { first: 4, ..whole }, WIDTH, &x[4 * WIDTH..], &mut y);
    assert_eq!(y, want[4 * WIDTH..]);
    // Some elements of every sample.
    let runs = [3..9, 14..25];
    let own = |all: &[f64]| -> Vec<f64> {
        all.chunks_exact(WIDTH).flat_map(|all| runs.clone().map(|run| all[run].to_vec()).concat()).collect()
    };
    let mut y = vec![0.0; 6 * 17];
    dropout.apply_to(whole, &runs, &own(&x), &mut y);
    assert_eq!(y, own(&want));
    let mut row = x[14..25].to_vec();
    dropout.row(whole.sample(0), 14, &mut row);
    assert_eq!(row, want[14..25]);
    assert_eq!(DropoutStream::of_words(&second.words()), Some(second));
}
