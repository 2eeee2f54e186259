//! One training step (forward, loss, backward, SGD) on one thread, compared with the rate of a large matrix product
//! measured in the same run, which is the limit for the products of a step; and the step of a run whose batches are slow to prepare, for
//! several numbers of steps of an epoch.
//!
//! `cargo bench -p allfold-trainer --bench step`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use allfold_collectives::World;
use allfold_kernels::nn::{Matrix, Store, matmul};
use allfold_trainer::data::Samples;
use allfold_trainer::engine::StepInput;
use allfold_trainer::models::{Cnn, cnn, mlp};
use allfold_trainer::{
    Batch, Config, Dataset, Error, Model, Network, Observer, RankTrainer, StepReport, optim, train_on,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Instant;

/// Side of the square product that stands for the machine's peak.
const SIDE: usize = 512;

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

/// Builds a network.
type Build<'a> = &'a (dyn Fn() -> Network<f32> + Sync);

fn step(c: &mut Criterion) {
    let parts = Cnn { shape: (1, 8, 8), channels: &[32, 64], batch_norm: true, classes: 10 };
    let networks: [(&str, usize, Build<'_>); 3] = [
        ("mlp 784-128-10, batch 64", 64, &|| mlp(784, &[128], 10).unwrap()),
        ("mlp 64-128-10, batch 32", 32, &|| mlp(64, &[128], 10).unwrap()),
        ("cnn of the digits, batch 32", 32, &|| cnn(&parts).unwrap()),
    ];
    let mut group = c.benchmark_group("step");
    let config = Config::default().with(|c| {
        c.strategy = "single".into();
        c.optimiser.weight_decay = 1e-4;
    });
    for (name, batch, build) in networks {
        let network = build();
        let x: Vec<f32> = (0..batch * network.inputs()).map(|i| (i * 7919 % 17) as f32 / 16.0).collect();
        let labels: Vec<u32> = (0..batch as u32).map(|i| i % 10).collect();
        let optimiser = optim::build::<f32>(&config, network.params()).unwrap();
        let phases = network.forward_phases().into_iter().chain(network.backward_phases());
        let step: u64 = phases.map(|phase| network.cost(phase, batch).flops).sum();
        group.throughput(flops(step + optimiser.cost(network.param_count()).flops));
        group.bench_function(name, |bench| {
            bench.iter_custom(|steps| {
                let body = |comm| {
                    let mut rank = RankTrainer::new(&config, build(), &comm)?;
                    rank.start(&mut Model::new(build(), 0)?)?;
                    let mut samples = Batch { x: x.clone(), labels: labels.clone() };
                    let start = Instant::now();
                    for _ in 0..steps {
                        let input = StepInput { lr: 0.01, ..StepInput::default() };
                        black_box(rank.step(&mut samples, input, None)?.loss);
                    }
                    Ok::<_, Error>(start.elapsed())
                };
                World::threads(1).run(body).unwrap().remove(0)
            });
        });
    }
    group.finish();
}

/// The times of the steps of a run, in microseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Observer for Times {
    fn step(&mut self, report: &StepReport) {
        self.0.push(1e6 * report.time.total().as_secs());
    }
}

/// Prints the mean step where an epoch has 1, 2, 4 and 8 steps: batches are prepared ahead over the end of an epoch too.
fn epochs(_: &mut Criterion) {
    const BATCH: usize = 64;
    const STEPS: usize = 32;
    let shape = (3, 96, 96);
    let set = |samples: usize| Dataset {
        shape,
        classes: 10,
        samples: Samples::Numbers(vec![0.5; samples * 3 * 96 * 96]),
        labels: (0..samples as u32).map(|i| i % 10).collect(),
    };
    let mut first = None;
    for per_epoch in [8, 4, 2, 1] {
        let config = Config::default().with(|c| {
            c.strategy = "single".into();
            c.model.name = "mlp".into();
            c.model.hidden = vec![64];
            c.training.batch = BATCH;
            (c.training.epochs, c.training.max_steps) = (STEPS as u64, STEPS as u64);
            c.data.random_resized_crop = true;
            c.data.workers = 1;
        });
        let (train, test) = (set(per_epoch * BATCH), set(1));
        let body = |comm| {
            let mut times = Times::default();
            train_on(&config, &train, &test, &comm, &mut times)?;
            Ok::<_, Error>(times.0)
        };
        let times = World::threads(1).run(body).unwrap().remove(0);
        // The first steps wait for the first batches.
        let mean = times[STEPS / 4..].iter().sum::<f64>() / (STEPS - STEPS / 4) as f64;
        let most = *first.get_or_insert(mean);
        println!("{per_epoch} steps of an epoch: {mean:.0} us a step, {:.3} of that with 8", mean / most);
    }
}

criterion_group!(benches, peak, step, epochs);
criterion_main!(benches);
