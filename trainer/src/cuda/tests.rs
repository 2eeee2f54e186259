//! The shim trains what the CPU trains: losses, evaluation and weights, whatever the model and the precision. The same tests
//! run on a GPU where ALLFOLD_TEST_GPU is set, with more room for rounding: libraries sum in orders of their own.

use super::Replica;
use crate::data::{Samples, digits};
use crate::layers::{
    Add, BatchNorm, Conv2d, Gelu, GlobalMeanPool, Layer, LayerNorm, Linear, MaxPool, MeanPool, Relu,
};
use crate::network::Builder;
use crate::optim::{Optimiser, Sgd};
use crate::{
    Batch, Config, Dataset, Listener, Model, Moment, Network, Objective, Result, TrainResult, train_with,
};
use allfold_collectives::World;
use allfold_kernels::cuda::{Gpu, Machine, Order, Shim};
use allfold_kernels::nn::{self, Cost, Pool};
use std::sync::Arc;

fn machine() -> Arc<dyn Machine> {
    match std::env::var_os("ALLFOLD_TEST_GPU") {
        Some(_) => Gpu::open().unwrap(),
        None => Shim::open(Order::Upwards).unwrap(),
    }
}

/// How much further a result may be from the CPU's on a GPU.
fn room() -> f64 {
    if std::env::var_os("ALLFOLD_TEST_GPU").is_some() { 10.0 } else { 1.0 }
}

fn pictures() -> (Dataset, Dataset) {
    let (train, test) = digits().unwrap();
    (train.first(32), test.first(12))
}

/// Windows of a made-up language of `classes` tokens.
fn sentences(samples: usize, positions: usize, classes: usize) -> Dataset {
    let token = |i: usize| (i * i + i / 3) % classes;
    let tokens: Vec<usize> = (0..samples * positions + 1).map(token).collect();
    Dataset {
        shape: (1, 1, positions),
        classes,
        samples: Samples::Numbers(tokens[..samples * positions].iter().map(|&t| t as f32).collect()),
        labels: tokens[1..].iter().map(|&t| t as u32).collect(),
    }
}

/// On the CPU, or on a machine that all ranks share.
fn run(config: &Config, (train, test): &(Dataset, Dataset), ranks: u32, shim: bool) -> Vec<TrainResult> {
    let shared = shim.then(machine);
    World::threads(ranks).run(|comm| train_with(config, train, test, &comm, shared.clone(), &mut ())).unwrap()
}

/// Trains on both, and holds the losses against each other, within this share of them.
fn agrees(config: &Config, data: &(Dataset, Dataset), ranks: u32, within: f64) -> (TrainResult, TrainResult) {
    let within = within * room();
    let (cpu, device) = (run(config, data, ranks, false).remove(0), run(config, data, ranks, true));
    for rank in &device {
        assert_eq!(rank.losses, device[0].losses);
        assert_eq!(rank.weights_hash, device[0].weights_hash);
    }
    let device = device.into_iter().next().unwrap();
    assert_eq!(cpu.losses.len(), device.losses.len());
    for (step, (a, b)) in cpu.losses.iter().zip(&device.losses).enumerate() {
        assert!((a - b).abs() <= within * a.abs(), "step {step}: {a} on the CPU, {b} on the shim");
    }
    assert_eq!(cpu.test.samples, device.test.samples);
    assert!(
        (cpu.test.loss - device.test.loss).abs() <= within * cpu.test.loss,
        "{:?} {:?}",
        cpu.test,
        device.test
    );
    (cpu, device)
}

fn small() -> Config {
    Config { model: "mlp".into(), hidden: vec![16], batch: 4, epochs: 2, lr: 0.1, ..Config::default() }
}

#[test]
fn an_mlp_trains_as_on_the_cpu_on_one_and_two_ranks() {
    let data = pictures();
    for (ranks, accumulate, exchange) in [(1, 1, "auto"), (2, 1, "device"), (3, 1, "host"), (2, 3, "device")]
    {
        let exchange = exchange.into();
        let config = Config { accumulate, exchange, first_bucket_kib: 0, bucket_kib: 0, ..small() };
        let (cpu, device) = agrees(&config, &data, ranks, 1e-5);
        assert!(ranks > 1 || device.losses.last().unwrap() < &device.losses[0]);
        assert_eq!(cpu.test.correct, device.test.correct);
    }
}

/// The sums are the CPU's, so the way that they go changes no bit.
#[test]
fn sums_over_devices_and_over_the_host_are_the_same_bits() {
    let data = pictures();
    let by = |exchange: &str| run(&Config { exchange: exchange.into(), ..small() }, &data, 3, true).remove(0);
    let (device, host) = (by("device"), by("host"));
    assert_eq!((device.losses, device.weights_hash), (host.losses, host.weights_hash));
}

/// What bounds, decays and scales: each changes the course, and is the CPU's.
#[test]
fn optimisers_clip_and_step_as_the_cpus() {
    let data = pictures();
    let some = [
        Config { optimiser: "adam".into(), lr: 0.01, ..small() },
        Config { optimiser: "adamw".into(), lr: 0.01, weight_decay: 0.1, clip_norm: 0.5, ..small() },
        Config { nesterov: true, loss: "mse".into(), ..small() },
        Config { momentum: 0.0, clip_norm: 0.1, loss_scale: 1024.0, ..small() },
        Config { frozen: vec!["fc1".into()], ..small() },
    ];
    let plain = run(&small(), &data, 1, true).remove(0);
    for config in some {
        let (_, device) = agrees(&config, &data, 1, 1e-5);
        assert_ne!(device.losses, plain.losses, "{config:?} changes nothing");
    }
}

#[test]
fn a_cnn_with_synchronised_batch_norm_and_amp_trains_as_on_the_cpu() {
    let data = pictures();
    let cnn = Config {
        model: "cnn".into(),
        channels: vec![4, 6],
        batch: 4,
        epochs: 1,
        lr: 0.05,
        ..Config::default()
    };
    let amp =
        |amp: &str, loss_scale| Config { amp: amp.into(), loss_scale, sync_batch_norm: true, ..cnn.clone() };
    for (config, ranks, within) in [
        (Config { sync_batch_norm: true, ..cnn.clone() }, 2, 2e-5),
        (Config { batch_norm: false, ..cnn.clone() }, 1, 2e-5),
        (amp("f16", 512.0), 2, 2e-2),
        (amp("bf16", 0.0), 1, 6e-2),
    ] {
        agrees(&config, &data, ranks, within);
    }
}

/// f16 gradients that overflow: both skip the same steps, and back off alike.
#[test]
fn a_scale_that_overflows_is_skipped_and_halved_as_on_the_cpu() {
    let data = pictures();
    let config = Config { amp: "f16".into(), loss_scale: 3e8, lr: 0.05, ..small() };
    let (cpu, _) = agrees(&config, &data, 1, 2e-2);
    let steady = run(&Config { loss_scale: 0.0, ..config }, &data, 1, false).remove(0);
    assert_ne!(cpu.losses, steady.losses, "no step was skipped");
}

#[test]
fn a_small_gpt_trains_as_on_the_cpu() {
    let data = (sentences(8, 9, 11), sentences(3, 9, 11));
    let gpt = Config {
        model: "gpt".into(),
        layers: 1,
        width: 64,
        heads: 2,
        dropout: 0.2,
        batch: 2,
        epochs: 1,
        optimiser: "adamw".into(),
        lr: 3e-3,
        ..Config::default()
    };
    for (config, ranks, within) in [
        (gpt.clone(), 2, 5e-5),
        (Config { tied: false, dropout: 0.0, ..gpt.clone() }, 1, 5e-5),
        (Config { amp: "bf16".into(), ..gpt }, 1, 3e-2),
    ] {
        agrees(&config, &data, ranks, within);
    }
}

struct Nobody;

impl Listener<f32> for Nobody {
    fn spent(&mut self, _cost: Cost) {}
    fn ready(&mut self, _param: usize, _gradient: &[f32]) -> Result<()> {
        Ok(())
    }
}

/// Two branches, a pooling with padding, means of windows and planes: a residual network in small.
fn block() -> Network<f32> {
    let conv = |inputs, outputs, picture, kernel, stride| {
        let padding = kernel / 2;
        Conv2d::new(nn::Conv2d { inputs, outputs, picture, kernel, stride, padding, groups: 1 })
    };
    let mut builder = Builder::new(2 * 8 * 7);
    let mut push = |name: &str, layer: Box<dyn Layer<f32>>, from: &[usize]| {
        builder.push_boxed(name, layer, from).unwrap()
    };
    let a = push("stem", Box::new(conv(2, 4, (8, 7), 3, 1).with_bias()), &[0]);
    let pool = Pool { channels: 4, picture: (8, 7), window: 3, stride: 2, padding: 1 };
    let b = push("pool", Box::new(MaxPool::new(pool)), &[a]);
    let c = push("conv1", Box::new(conv(4, 6, (4, 4), 3, 2)), &[b]);
    let d = push("bn1", Box::new(BatchNorm::new(6, 4)), &[c]);
    let e = push("relu", Box::new(Relu::new(24)), &[d]);
    let f = push("conv2", Box::new(conv(6, 6, (2, 2), 3, 1)), &[e]);
    let g = push("short", Box::new(conv(4, 6, (4, 4), 1, 2)), &[b]);
    let h = push("add", Box::new(Add::new(24)), &[f, g]);
    let i = push("ln", Box::new(LayerNorm::new(6, 4)), &[h]);
    let j = push("gelu", Box::new(Gelu::new(24)), &[i]);
    let mean = Pool { channels: 6, picture: (2, 2), window: 2, stride: 1, padding: 0 };
    let k = push("mean", Box::new(MeanPool::new(mean)), &[j]);
    let l = push("again", Box::new(Linear::new(6, 12)), &[k]);
    let m = push("planes", Box::new(GlobalMeanPool::new(3, 4)), &[l]);
    push("fc", Box::new(Linear::new(3, 4)), &[m]);
    builder.build(1).unwrap()
}

/// Every layer but those of the gpt, for as many steps as a captured one needs to be replayed, in batches of two sizes.
#[test]
fn a_residual_block_trains_as_on_the_cpu_and_becomes_graphs() {
    let config = Config { lr: 0.05, momentum: 0.9, ..Config::default() };
    let mut model = Model::new(block(), 3).unwrap();
    let mut sgd = Sgd::<f32>::new(config.momentum, config.weight_decay, false);
    let batch = |n: usize, seed: usize| Batch::<f32> {
        x: (0..n * 112).map(|i| ((i + seed) * 37 % 101) as f32 / 50.0 - 1.0).collect(),
        labels: (0..n as u32).map(|i| (i + seed as u32) % 4).collect(),
    };
    let mut losses = Vec::new();
    for step in 0..9 {
        let batch = batch(if step % 3 == 2 { 3 } else { 5 }, step);
        model.forward(&batch.x, &mut Nobody).unwrap();
        losses.push(model.backward(Objective::mean(&batch.labels), &mut Nobody).unwrap());
        sgd.step(config.lr, &mut model.params, &model.grads);
    }
    let config = &config;
    let device = World::threads(1).run(|comm| {
        let mut replica = Replica::of(config, block(), &comm, (machine(), 0))?;
        let (mut start, mut memory) = (Model::new(block(), 3)?, Sgd::<f32>::new(0.9, 0.0, false));
        replica.upload(&start.params, &start.buffers, &mut memory)?;
        // A run that goes on from its last step evaluates first, and in larger batches than it trains in.
        assert!(replica.evaluate(&batch(7, 1))?.0.is_finite());
        let (mut losses, mut peak) = (Vec::new(), 0);
        for step in 0..9 {
            replica.stage(&batch(if step % 3 == 2 { 3 } else { 5 }, step))?;
            let samples = replica.start(Moment::default(), config.lr, None)?;
            losses.push(replica.finish(samples)?.loss);
            if step == 5 {
                peak = replica.memory().activations;
            }
        }
        // Two sizes of batch, each once as it is and then as a graph, which takes no more memory.
        assert_eq!(replica.graphs(), 2);
        assert!(peak > 0 && replica.memory().activations == peak);
        replica.download(&mut start.params, &mut start.buffers, &mut memory)?;
        assert_eq!(*memory.state().steps, 9);
        Ok::<_, crate::Error>((losses, start.params, start.buffers))
    });
    let (device, params, buffers) = device.unwrap().remove(0);
    for (step, (a, b)) in losses.iter().zip(&device).enumerate() {
        assert!((f64::from(*a) - b).abs() < 2e-5 * room() * b.abs(), "step {step}: {a} {b}");
    }
    let near = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).all(|(a, b)| f64::from((a - b).abs()) < 1e-3 * room() * f64::from(b.abs().max(0.1)))
    };
    for place in model.network().params() {
        let (got, want) = (&params[place.range.clone()], &model.params[place.range.clone()]);
        assert!(near(got, want), "{}: {got:?} {want:?}", place.name);
    }
    assert!(near(&buffers, &model.buffers), "{buffers:?} {:?}", model.buffers);
}
