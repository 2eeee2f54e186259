//! One training step (forward, loss, backward, SGD) on one thread, beside the rate of a large matrix product measured
//! in the same run: the limit for the products that a step is made of.
//!
//! `cargo bench -p allfold-trainer --bench step`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::Buffer;
use allfold_kernels::nn::{Matrix, OpCost, Store, matmul};
use allfold_trainer::models::{Cnn, cnn, mlp};
use allfold_trainer::{Listener, Model, Network, Objective, Optimiser, Result, Sgd};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::ops::Range;

/// Side of the square product that stands for the machine's peak.
const SIDE: usize = 512;

struct Nobody;

impl Listener<f32> for Nobody {
    fn on_cost(&mut self, _: OpCost) {}
    fn on_grad(&mut self, _: usize, _: Range<usize>, _: &mut Buffer<f32>) -> Result<()> {
        Ok(())
    }
}

/// Criterion prints elements per second; an element here is one floating-point operation.
fn flops(count: u64) -> Throughput {
    Throughput::Elements(count)
}

fn peak(c: &mut Criterion) {
    let (a, b) = (vec![0.5f32; SIDE * SIDE], vec![0.25f32; SIDE * SIDE]);
    let mut out = vec![0f32; SIDE * SIDE];
    let mut group = c.benchmark_group("limit");
    group.throughput(flops(2 * (SIDE * SIDE * SIDE) as u64));
    group.bench_function("matmul 512 f32", |bench| {
        bench.iter(|| {
            let (a, b) = (Matrix::new(&a, SIDE, SIDE), Matrix::new(&b, SIDE, SIDE));
            matmul(black_box(&mut out), Store::Replace, a, b);
        });
    });
    group.finish();
}

fn step(c: &mut Criterion) {
    let parts = Cnn { shape: (1, 8, 8), channels: &[32, 64], batch_norm: true, classes: 10 };
    let models: [(&str, usize, Network<f32>); 3] = [
        ("mlp 784-128-10, batch 64", 64, mlp(784, &[128], 10).unwrap()),
        ("mlp 64-128-10, batch 32", 32, mlp(64, &[128], 10).unwrap()),
        ("cnn of the digits, batch 32", 32, cnn(&parts).unwrap()),
    ];
    let mut group = c.benchmark_group("step");
    for (name, batch, network) in models {
        let x: Vec<f32> = (0..batch * network.inputs()).map(|i| (i * 7919 % 17) as f32 / 16.0).collect();
        let labels: Vec<u32> = (0..batch as u32).map(|i| i % 10).collect();
        let mut sgd = Sgd::new(0.9, 1e-4, false);
        group.throughput(flops(network.step_cost(batch).flops + sgd.cost(network.param_count()).flops));
        let mut model = Model::new(network, 0).unwrap();
        group.bench_function(name, |bench| {
            bench.iter(|| {
                model.forward(&x, &mut Nobody).unwrap();
                let loss = model.backward(Objective::mean(&labels), &mut Nobody).unwrap();
                sgd.step(0.01, &mut model.params, &model.grads);
                loss
            });
        });
    }
    group.finish();
}

criterion_group!(benches, peak, step);
criterion_main!(benches);
