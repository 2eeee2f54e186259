//! Tests of attention.cu and attention_mma.cu against the whole matrix of scores in f64.

use crate::common::{Trained, near, of, units, wide};
use allfold_cuda::Queue;
use allfold_cuda::launch::{self, Dropped, Heads};
use allfold_kernels::nn::DropoutStream;

pub fn check(queue: &Queue) {
    crate::for_trained!(attention, queue);
}

/// The shape of an attention.
struct Shape {
    batch: usize,
    length: usize,
    heads: usize,
    size: usize,
    causal: bool,
}

/// The expected output, log-sum-exps, and input gradient.
struct Wanted {
    y: Vec<f64>,
    lse: Vec<f64>,
    dqkv: Vec<f64>,
}

impl Shape {
    /// The expected results, by the whole matrix of scores; `kept(row, key)` is the dropout factor of a probability.
    fn wanted(&self, x: &[f64], g: &[f64], kept: impl Fn(usize, usize) -> f64) -> Wanted {
        let Shape { batch, length, heads, size, causal } = *self;
        let width = heads * size;
        let scale = 1.0 / (size as f64).sqrt();
        let at = |b: usize, t: usize, third: usize, h: usize, d: usize| {
            (b * length + t) * 3 * width + third * width + h * size + d
        };
        let (mut y, mut dqkv) = (vec![0.0; batch * length * width], vec![0.0; x.len()]);
        let mut lse = vec![0.0; batch * heads * length];
        for b in 0..batch {
            for h in 0..heads {
                for t in 0..length {
                    let seen = if causal { t + 1 } else { length };
                    let out = |d: usize| (b * length + t) * width + h * size + d;
                    let dot = |third: usize, j: usize| {
                        (0..size).map(|d| x[at(b, t, 0, h, d)] * x[at(b, j, third, h, d)]).sum::<f64>()
                            * scale
                    };
                    let scores: Vec<f64> = (0..seen).map(|j| dot(1, j)).collect();
                    let total: f64 = scores.iter().map(|s| s.exp()).sum();
                    lse[(b * heads + h) * length + t] = total.ln();
                    let p: Vec<f64> = scores.iter().map(|s| s.exp() / total).collect();
                    let r: Vec<f64> = (0..seen).map(|j| kept((b * heads + h) * length + t, j)).collect();
                    for d in 0..size {
                        y[out(d)] = (0..seen).map(|j| r[j] * p[j] * x[at(b, j, 2, h, d)]).sum();
                    }
                    let dp: Vec<f64> = (0..seen)
                        .map(|j| r[j] * (0..size).map(|d| g[out(d)] * x[at(b, j, 2, h, d)]).sum::<f64>())
                        .collect();
                    let mean: f64 = (0..seen).map(|j| p[j] * dp[j]).sum();
                    for j in 0..seen {
                        let ds = p[j] * (dp[j] - mean) * scale;
                        for d in 0..size {
                            dqkv[at(b, t, 0, h, d)] += ds * x[at(b, j, 1, h, d)];
                            dqkv[at(b, j, 1, h, d)] += ds * x[at(b, t, 0, h, d)];
                            dqkv[at(b, j, 2, h, d)] += r[j] * p[j] * g[out(d)];
                        }
                    }
                }
            }
        }
        Wanted { y, lse, dqkv }
    }
}

fn attention<T: Trained>(queue: &Queue) {
    // Tensor cores take probabilities, and the gradients of scores, rounded to 16 bits. The errors of a sum's terms are
    // independent of each other, so the sum's error is below that of one rounding of the largest result.
    let rounded = if size_of::<T>() == 2 { f64::from(T::HALF) } else { 0.0 };
    for (batch, length, heads, size, causal, share) in [
        (1, 1, 1, 32, true, 0.0),
        (2, 37, 2, 32, true, 0.3),
        (1, 70, 1, 64, false, 0.0),
        (1, 33, 2, 64, true, 0.0),
        (1, 41, 2, 128, true, 0.5),
        (1, 35, 3, 7, true, 0.25),
        (1, 33, 2, 80, false, 0.0),
        (1, 150, 1, 64, true, 0.2),
        (1, 199, 1, 128, true, 0.0),
        (1, 131, 2, 32, false, 0.1),
    ] {
        let what = format!(
            "attention of {batch} x {length} x {heads} x {size}, causal {causal}, dropping {share}, {}",
            T::DTYPE
        );
        // The draws that the CPU's dropout makes: one group for four keys of a row.
        let stream = DropoutStream { seed: 0x1234_5678_9abc, step: 3, layer: 5, first: 4, stride: 7 };
        let bound = (share * 4_294_967_296.0) as u32;
        let kept = |row: usize, j: usize| {
            let (sample, row) = (row / (heads * length), row % (heads * length));
            let group = row * usize::div_ceil(length, 4) + j / 4;
            let draw = stream.sample(sample).four(group as u32)[j % 4];
            if draw >= bound { 1.0 / (1.0 - share) } else { 0.0 }
        };
        let width = heads * size;
        let qkv: Vec<T> = of(&units(batch * length * 3 * width, 1));
        let dy: Vec<T> = of(&units(batch * length * width, 2));
        let shape = Shape { batch, length, heads, size, causal };
        let Wanted { y, lse, dqkv } = shape.wanted(&wide(&qkv), &wide(&dy), kept);
        let draws = queue.upload(&stream.words()).unwrap();
        let dropped =
            (share > 0.0).then_some(Dropped { stream: draws.all(), layer: stream.layer, share, part: None });
        let s = Heads { dtype: T::DTYPE, batch, length, heads, size, causal, dropped };
        let (gqkv, gdy) = (queue.upload(&qkv).unwrap(), queue.upload(&dy).unwrap());
        let (gy, gdqkv) = (queue.memory(gdy.len()).unwrap(), queue.memory(gqkv.len()).unwrap());
        let glse = queue.memory(4 * lse.len()).unwrap();
        launch::attention(queue, &s, gqkv.all(), gy.all(), glse.all()).unwrap();
        near::<T>(&what, &queue.download(gy.all()).unwrap(), &y, 2e-6 + rounded);
        near::<f32>(&format!("{what}, norms"), &queue.download(glse.all()).unwrap(), &lse, 2e-6);
        launch::attention_back(queue, &s, gqkv.all(), (gy.all(), gdy.all()), glse.all(), gdqkv.all())
            .unwrap();
        // y is rounded to T, and the gradient of every score subtracts its product with dy.
        near::<T>(
            &format!("{what}, gradient"),
            &queue.download(gdqkv.all()).unwrap(),
            &dqkv,
            4e-6 + f64::from(T::HALF) + rounded,
        );
    }
    let dropped = None;
    let s = Heads { dtype: T::DTYPE, batch: 1, length: 1, heads: 1, size: 129, causal: true, dropped };
    let memory = queue.memory(129 * 3 * size_of::<T>()).unwrap();
    assert!(launch::attention(queue, &s, memory.all(), memory.all(), memory.all()).is_err());
}
