//! attention.cu against the whole matrix of scores in f64.

use crate::common::{Trained, near, of, units, wide};
use allfold_kernels::cuda::Queue;
use allfold_kernels::cuda::launch::{self, Heads};

pub fn check(queue: &Queue) {
    crate::for_trained!(attention, queue);
}

fn attention<T: Trained>(queue: &Queue) {
    for (batch, length, heads, size, causal) in [
        (1, 1, 1, 32, true),
        (2, 37, 2, 32, true),
        (1, 70, 1, 64, false),
        (1, 33, 2, 64, true),
        (1, 41, 2, 128, true),
    ] {
        let what =
            format!("attention of {batch} x {length} x {heads} x {size}, causal {causal}, {}", T::DTYPE);
        let width = heads * size;
        let qkv: Vec<T> = of(&units(batch * length * 3 * width, 1));
        let dy: Vec<T> = of(&units(batch * length * width, 2));
        let (x, g) = (wide(&qkv), wide(&dy));
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
                    for d in 0..size {
                        y[out(d)] = (0..seen).map(|j| p[j] * x[at(b, j, 2, h, d)]).sum();
                    }
                    let dp: Vec<f64> = (0..seen)
                        .map(|j| (0..size).map(|d| g[out(d)] * x[at(b, j, 2, h, d)]).sum())
                        .collect();
                    let mean: f64 = (0..seen).map(|j| p[j] * dp[j]).sum();
                    for j in 0..seen {
                        let ds = p[j] * (dp[j] - mean) * scale;
                        for d in 0..size {
                            dqkv[at(b, t, 0, h, d)] += ds * x[at(b, j, 1, h, d)];
                            dqkv[at(b, j, 1, h, d)] += ds * x[at(b, t, 0, h, d)];
                            dqkv[at(b, j, 2, h, d)] += p[j] * g[out(d)];
                        }
                    }
                }
            }
        }
        let s = Heads { dtype: T::DTYPE, batch, length, heads, size, causal };
        let (gqkv, gdy) = (queue.upload(&qkv).unwrap(), queue.upload(&dy).unwrap());
        let (gy, gdqkv) = (queue.memory(gdy.len()).unwrap(), queue.memory(gqkv.len()).unwrap());
        let glse = queue.memory(4 * lse.len()).unwrap();
        launch::attention(queue, &s, gqkv.all(), gy.all(), glse.all()).unwrap();
        near::<T>(&what, &queue.download(gy.all()).unwrap(), &y, 2e-6);
        near::<f32>(&format!("{what}, norms"), &queue.download(glse.all()).unwrap(), &lse, 2e-6);
        launch::attention_back(queue, &s, gqkv.all(), (gy.all(), gdy.all()), glse.all(), gdqkv.all())
            .unwrap();
        // y comes back rounded to T, and its product with dy is taken off every slope.
        near::<T>(
            &format!("{what}, gradient"),
            &queue.download(gdqkv.all()).unwrap(),
            &dqkv,
            4e-6 + f64::from(T::HALF),
        );
    }
    let s = Heads { dtype: T::DTYPE, batch: 1, length: 1, heads: 1, size: 48, causal: true };
    let memory = queue.memory(48 * 3 * size_of::<T>()).unwrap();
    assert!(launch::attention(queue, &s, memory.all(), memory.all(), memory.all()).is_err());
}
