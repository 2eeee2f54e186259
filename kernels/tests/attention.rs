//! Attention against its definition, and with dropout.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_kernels::nn::{AttentionDropout, AttentionShape, DropoutKernel, DropoutStream};

/// `count` numbers between -1 and 1 without a pattern.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The attention without dropout.
fn plain(shape: &AttentionShape, x: &[f64]) -> Vec<f64> {
    let n = x.len() / (3 * shape.positions * shape.width);
    let (mut saved, mut y) = (vec![9.0; n * shape.heads * shape.positions], vec![9.0; x.len() / 3]);
    shape.forward(x, &mut saved, &mut y);
    y
}

#[test]
fn equals_the_definition_and_sees_no_later_key() {
    let shape = AttentionShape { positions: 70, width: 6, heads: 3, kv_heads: 3, causal: true };
    let mut x = numbers(70 * 18, 5);
    let y = plain(&shape, &x);
    for (t, head) in (0..70).flat_map(|t| (0..3).map(move |h| (t, h))) {
        let at = |t: usize, part: usize, i: usize| x[t * 18 + part * 6 + head * 2 + i];
        let scores: Vec<f64> = (0..=t)
            .map(|j| ((0..2).map(|i| at(t, 0, i) * at(j, 1, i)).sum::<f64>() / 2f64.sqrt()).exp())
            .collect();
        let total: f64 = scores.iter().sum();
        for i in 0..2 {
            let want = (0..=t).map(|j| scores[j] * at(j, 2, i)).sum::<f64>() / total;
            assert!((y[t * 6 + head * 2 + i] - want).abs() < 1e-13);
        }
    }
    x[40 * 18..].fill(0.5);
    assert_eq!(plain(&shape, &x)[..40 * 6], y[..40 * 6]);
}

#[test]
fn gradients_with_dropout() {
    let stream = DropoutStream { seed: 7, step: 1, layer: 3, first: 2, stride: 1 };
    let dropping = Some(AttentionDropout { kernel: DropoutKernel { share: 0.3 }, stream, first_head: 0 });
    for (positions, heads, n) in [(5, 2, 2), (34, 1, 1)] {
        let shape = AttentionShape { positions, width: 4, heads, kv_heads: heads, causal: true };
        let run = |x: &[f64]| {
            let (mut saved, mut y) = (vec![9.0; n * heads * positions], vec![9.0; x.len() / 3]);
            shape.forward_dropping(dropping, x, &mut saved, &mut y);
            (y, saved)
        };
        let (x, r) = (numbers(n * positions * 12, 1), numbers(n * positions * 4, 2));
        let (y, saved) = run(&x);
        assert_ne!(y, plain(&shape, &x));
        let mut dx = vec![9.0; x.len()];
        shape.backward_dropping(dropping, &x, &saved, (&y, &r), &mut dx);
        let value = |x: &[f64]| run(x).0.iter().zip(&r).map(|(y, r)| y * r).sum::<f64>();
        let mut moved = x.clone();
        for (i, gradient) in dx.iter().enumerate() {
            let mut at = |step: f64| {
                moved[i] = x[i] + step;
                value(&moved)
            };
            let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
            moved[i] = x[i];
            assert!((numeric - gradient).abs() < 1e-7 * numeric.abs().max(1.0), "{i}: {gradient} {numeric}");
        }
    }
}
