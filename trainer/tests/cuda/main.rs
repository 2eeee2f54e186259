//! Training on the shim gives the CPU's losses, evaluation and weights, whatever the model and the precision. The tests of this
//! file run on a GPU if ALLFOLD_TEST_GPU is set, with larger tolerances: the GPU's libraries sum in their own orders.
#![allow(missing_docs, clippy::unwrap_used)]

mod data_parallel;
mod ends;
mod parameter_server;
mod pipeline;
mod shared_samples;
mod tensor;
mod unlike;
mod ways;
mod zero;

use allfold_collectives::World;
use allfold_cuda::CudaMachine;
use allfold_kernels::nn::{self, PoolShape};
use allfold_standin::{FiberOrder, Shim, ShimOptions};
use allfold_trainer::Builder;
use allfold_trainer::cuda::Replica;
use allfold_trainer::data::{Samples, digits};
use allfold_trainer::engine::StepInput;
use allfold_trainer::layers::{
    Add, BatchNorm, Conv2d, Gelu, GlobalMeanPool, Init, Layer, LayerNorm, Linear, MaxPool, MeanPool, Relu,
};
use allfold_trainer::optim::{Optimiser, Sgd};
use allfold_trainer::{Batch, Config, Dataset, Model, Network, RankTrainer, Result, TrainResult, train_with};
use std::sync::{Arc, OnceLock};

fn machine() -> Arc<dyn CudaMachine> {
    // The GPU is opened, and its kernels compiled, once per process.
    static GPU: OnceLock<Arc<dyn CudaMachine>> = OnceLock::new();
    match std::env::var_os("ALLFOLD_TEST_GPU") {
        Some(_) => GPU.get_or_init(|| allfold_standin::gpu().unwrap()).clone(),
        None => Shim::open(FiberOrder::Upwards).unwrap(),
    }
}

/// The GPU, or a shim of so many devices.
fn placed(devices: usize) -> Arc<dyn CudaMachine> {
    match std::env::var_os("ALLFOLD_TEST_GPU") {
        Some(_) => machine(),
        None => Shim::with(ShimOptions { devices, ..ShimOptions::default() }).unwrap(),
    }
}

/// Whether so many ranks can be tried over `exchange`: not over NCCL where they would share a GPU, since one rank's kernel then waits
/// for another's, and nothing bounds how many communicators' kernels wait.
fn can_try(exchange: &str, ranks: usize) -> bool {
    let shares = std::env::var_os("ALLFOLD_TEST_GPU").is_some() && machine().devices() < ranks;
    !shares || ["host", "device"].contains(&exchange)
}

/// The factor of the tolerances: on a GPU, results may differ more from the CPU's.
fn room() -> f64 {
    if std::env::var_os("ALLFOLD_TEST_GPU").is_some() { 10.0 } else { 1.0 }
}

fn pictures() -> (Dataset, Dataset) {
    let (train, test) = digits().unwrap();
    (train.first(32), test.first(12))
}

/// Windows of a generated language of `classes` tokens.
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

/// Trains on the CPU, or, if `shim` is true, on a machine that all ranks share.
fn run(config: &Config, (train, test): &(Dataset, Dataset), ranks: u32, shim: bool) -> Vec<TrainResult> {
    let shared = shim.then(machine);
    World::threads(ranks).run(|comm| train_with(config, train, test, &comm, shared.clone(), &mut ())).unwrap()
}

/// Compares the losses of a run on a device with those of a run on the CPU, within the relative tolerance `within`.
fn assert_near(cpu: &TrainResult, device: &TrainResult, within: f64) {
    assert_eq!(cpu.losses.len(), device.losses.len());
    for (step, (a, b)) in cpu.losses.iter().zip(&device.losses).enumerate() {
        assert!((a - b).abs() <= within * a.abs(), "step {step}: {a} on the CPU, {b} on the shim");
    }
    assert_eq!(cpu.test.labels, device.test.labels);
    assert!(
        (cpu.test.loss - device.test.loss).abs() <= within * cpu.test.loss,
        "{:?} {:?}",
        cpu.test,
        device.test
    );
}

/// Trains on the CPU and on the device, and compares the losses within the relative tolerance `within`.
fn agrees(config: &Config, data: &(Dataset, Dataset), ranks: u32, within: f64) -> (TrainResult, TrainResult) {
    let within = within * room();
    let (cpu, device) = (run(config, data, ranks, false).remove(0), run(config, data, ranks, true));
    for rank in &device {
        assert_eq!(rank.losses, device[0].losses);
        assert_eq!(rank.weights_hash, device[0].weights_hash);
    }
    let device = device.into_iter().next().unwrap();
    assert_near(&cpu, &device, within);
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

/// Devices and host sum in the CPU's order, so both paths of the exchange give the same bits.
#[test]
fn sums_over_devices_and_over_the_host_are_the_same_bits() {
    let data = pictures();
    let by = |exchange: &str| run(&Config { exchange: exchange.into(), ..small() }, &data, 3, true).remove(0);
    let (device, host) = (by("device"), by("host"));
    assert_eq!((device.losses, device.weights_hash), (host.losses, host.weights_hash));
}

/// Clipping, weight decay and loss scales change the losses as on the CPU.
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

/// A small network of convolutions, each with its batch norm.
fn cnn() -> Config {
    Config { model: "cnn".into(), channels: vec![4, 6], batch: 4, epochs: 1, lr: 0.05, ..Config::default() }
}

#[test]
fn a_cnn_with_synchronised_batch_norm_and_amp_trains_as_on_the_cpu() {
    let data = pictures();
    let cnn = cnn();
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

/// Gradients in f16 overflow: the CPU and the device skip the same steps, and lower the loss scale alike.
#[test]
fn a_scale_that_overflows_is_skipped_and_halved_as_on_the_cpu() {
    let data = pictures();
    let config = Config { amp: "f16".into(), loss_scale: 3e8, lr: 0.05, ..small() };
    let (cpu, _) = agrees(&config, &data, 1, 2e-2);
    let steady = run(&Config { loss_scale: 0.0, ..config }, &data, 1, false).remove(0);
    assert_ne!(cpu.losses, steady.losses, "no step was skipped");
}

/// A picture has values above f16's range: its step is skipped, and the running statistics for the evaluation stay finite.
#[test]
fn running_statistics_outlive_a_batch_that_overflows() {
    let mut data = pictures();
    let Samples::Numbers(pixels) = &mut data.0.samples else { panic!("the digits are numbers") };
    pixels[..64].fill(1e6);
    for (sync_batch_norm, ranks, accumulate) in [(false, 1, 1), (false, 1, 2), (true, 2, 1)] {
        let config = Config { amp: "f16".into(), loss_scale: 512.0, sync_batch_norm, accumulate, ..cnn() };
        for shim in [false, true] {
            let result = run(&config, &data, ranks, shim).remove(0);
            let bad = result.losses.iter().filter(|loss| !loss.is_finite()).count();
            assert_eq!(bad, 1, "{:?}", result.losses);
            assert!(result.test.loss.is_finite(), "shim {shim}, {ranks} ranks: {:?}", result.test);
        }
    }
}

/// With channels last, pooling, batch norm (also over all ranks), AMP and LARS train as on the CPU.
#[test]
fn channels_last_trains_as_on_the_cpu() {
    let data = pictures();
    let cnn = cnn();
    let lars = Config { optimiser: "lars".into(), lr: 2.0, trust: 0.01, ..cnn.clone() };
    for (config, ranks, within) in [
        (Config { sync_batch_norm: true, ..cnn.clone() }, 2, 2e-5),
        (Config { batch_norm: false, ..cnn.clone() }, 1, 2e-5),
        (Config { amp: "f16".into(), loss_scale: 512.0, ..cnn }, 1, 2e-2),
        (lars, 1, 2e-5),
    ] {
        let cpu = run(&config, &data, ranks, false).remove(0);
        let there = run(&Config { channels_last: true, ..config.clone() }, &data, ranks, true).remove(0);
        assert_near(&cpu, &there, within * room());
    }
}

#[test]
fn what_has_no_meaning_on_a_device_or_without_one_is_refused_in_one_line() {
    let data = pictures();
    let refused = |config: &Config, shim: bool| {
        let world = World::threads(1);
        let ran = world.run(|comm| train_with(config, &data.0, &data.1, &comm, shim.then(machine), &mut ()));
        let text = ran.unwrap_err().to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    };
    let last = Config { channels_last: true, ..small() };
    assert!(refused(&last, true).contains("this one has none"));
    assert!(refused(&last, false).contains("is for device \"cuda\""));
    assert!(refused(&Config { dtype: "f64".into(), ..small() }, true).contains("GPUs train in f32"));
    let local = Config { hook: "local_sgd".into(), amp: "f16".into(), loss_scale: 8.0, ..small() };
    assert!(refused(&local, true).contains("no loss scale"));
}

/// LARS adapts the rates of matrices by the norms of weights and gradients; also with a narrow copy of the weights.
#[test]
fn lars_steps_as_the_cpus() {
    let data = pictures();
    let lars = Config { optimiser: "lars".into(), lr: 2.0, trust: 0.02, weight_decay: 0.01, ..small() };
    agrees(&lars, &data, 1, 1e-5);
    agrees(&Config { frozen: vec!["fc1".into()], ..lars.clone() }, &data, 2, 1e-5);
    agrees(&Config { amp: "f16".into(), loss_scale: 512.0, ..lars }, &data, 1, 2e-2);
}

/// Hooks compress and feed back as on the CPU, in buckets of one and of several parameters.
#[test]
fn hooks_change_gradients_as_on_the_cpu() {
    let data = pictures();
    let plain = run(&small(), &data, 2, true).remove(0);
    for (hook, bucket_kib, within) in [
        ("fp16", 0, 2e-3),
        ("bf16", 64, 1e-2),
        ("powersgd", 64, 2e-3),
        ("topk", 0, 2e-3),
        ("int8", 64, 1e-2),
        ("local_sgd", 64, 1e-5),
    ] {
        let config = Config {
            hook: hook.into(),
            topk_share: 0.2,
            local_steps: 3,
            first_bucket_kib: bucket_kib,
            bucket_kib,
            ..small()
        };
        let (_, device) = agrees(&config, &data, 2, within);
        assert_ne!(device.weights_hash, plain.weights_hash, "{hook} changes nothing");
    }
}

/// A checkpoint contains the hook's state: a resumed run equals one that was not interrupted.
#[test]
fn a_run_with_a_hook_goes_on_from_its_checkpoint_to_the_same_bits() {
    let data = pictures();
    for (hook, name, sharded) in [
        ("topk", "topk", false),
        ("local_sgd", "local", false),
        ("topk", "topk-s", true),
        ("local_sgd", "local-s", true),
    ] {
        let folder = std::env::temp_dir().join(format!("allfold-cuda-{name}-{}", std::process::id()));
        let config = Config {
            hook: hook.into(),
            topk_share: 0.2,
            checkpoint_dir: folder.to_string_lossy().into_owned(),
            checkpoint_every: 3,
            checkpoint_sharded: sharded,
            ..small()
        };
        let whole = run(&config, &data, 2, true).remove(0);
        std::fs::remove_dir_all(&folder).unwrap();
        run(&Config { max_steps: 3, ..config.clone() }, &data, 2, true);
        let rest = run(&Config { resume: true, ..config.clone() }, &data, 2, true).remove(0);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((whole.losses, whole.weights_hash), (rest.losses, rest.weights_hash), "{hook}");
    }
}

/// Rank 0's running statistics are broadcast to all ranks before every step.
#[test]
fn buffers_are_broadcast_as_on_the_cpu() {
    let data = pictures();
    for exchange in ["device", "host"] {
        let config = Config {
            model: "cnn".into(),
            channels: vec![4],
            batch: 4,
            epochs: 1,
            broadcast_buffers: true,
            exchange: exchange.into(),
            ..Config::default()
        };
        agrees(&config, &data, 2, 2e-5);
    }
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
        // Heads of 12 columns, with dropout of attention probabilities.
        (Config { width: 36, heads: 3, attention_dropout: 0.3, ..gpt.clone() }, 2, 5e-5),
        (Config { amp: "bf16".into(), ..gpt }, 1, 3e-2),
    ] {
        agrees(&config, &data, ranks, within);
    }
}

/// As on the CPU, one value per channel has no variance, on one rank or over all ranks, so the batch is refused.
#[test]
fn a_batch_norm_of_one_value_per_channel_is_refused() {
    let config = small();
    for (synchronised, needs) in [(false, "a rank needs 2 samples"), (true, "all ranks together need 2")] {
        let refused = World::threads(1).run(|comm| {
            let mut builder = Builder::new(2);
            let a = builder.push("fc1", Linear::new(2, 3), &[0])?;
            let b = builder.push("bn", BatchNorm::new(3, 1), &[a])?;
            builder.push("fc2", Linear::new(3, 4), &[b])?;
            let mut network: Network<f32> = builder.build(1)?;
            if synchronised {
                network.synchronise();
            }
            let mut replica = Replica::of(&config, network, &comm, (machine(), 0))?;
            replica.stage(&Batch::<f32> { x: vec![1.0, 2.0], labels: vec![3] })?;
            replica.start(StepInput { lr: 0.1, ..StepInput::default() }, 1, false)
        });
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("`bn` normalises over the batch") && error.contains(needs), "{error}");
    }
}

/// A small residual network: two branches, pooling with padding, a grouped convolution, mean pooling of windows and of planes.
fn block() -> Network<f32> {
    let grouped = |inputs, outputs, picture, kernel, stride, groups| {
        let padding = kernel / 2;
        Conv2d::new(nn::Conv2dShape { inputs, outputs, picture, kernel, stride, padding, groups })
    };
    let conv =
        |inputs, outputs, picture, kernel, stride| grouped(inputs, outputs, picture, kernel, stride, 1);
    let mut builder = Builder::new(2 * 8 * 7);
    let mut push = |name: &str, layer: Box<dyn Layer<f32>>, from: &[usize]| {
        builder.push_boxed(name, layer, from).unwrap()
    };
    let a = push("stem", Box::new(conv(2, 4, (8, 7), 3, 1).with_bias(Init::Uniform(0.3))), &[0]);
    let pool = PoolShape { channels: 4, picture: (8, 7), window: 3, stride: 2, padding: 1 };
    let b = push("pool", Box::new(MaxPool::new(pool)), &[a]);
    let c = push("conv1", Box::new(conv(4, 6, (4, 4), 3, 2)), &[b]);
    let d = push("bn1", Box::new(BatchNorm::new(6, 4)), &[c]);
    let e = push("relu", Box::new(Relu::new(24)), &[d]);
    let f = push("conv2", Box::new(grouped(6, 6, (2, 2), 3, 1, 3).with_bias(Init::Uniform(0.3))), &[e]);
    let g = push("short", Box::new(conv(4, 6, (4, 4), 1, 2)), &[b]);
    let h = push("add", Box::new(Add::new(24)), &[f, g]);
    let i = push("ln", Box::new(LayerNorm::new(6, 4)), &[h]);
    let j = push("gelu", Box::new(Gelu::new(24)), &[i]);
    let mean = PoolShape { channels: 6, picture: (2, 2), window: 2, stride: 1, padding: 0 };
    let k = push("mean", Box::new(MeanPool::new(mean)), &[j]);
    let l = push("again", Box::new(Linear::new(6, 12)), &[k]);
    let m = push("planes", Box::new(GlobalMeanPool::new(3, 4)), &[l]);
    push("fc", Box::new(Linear::new(3, 4)), &[m]);
    builder.build(1).unwrap()
}

/// The network has every layer but GPT's. It trains for enough steps to capture and replay graphs, in batches of two sizes.
#[test]
fn a_residual_block_trains_as_on_the_cpu_and_becomes_graphs() {
    residual(Config { lr: 0.05, momentum: 0.9, batch: 5, ..Config::default() });
}

/// Pictures have their channels last between the convolutions; layer norm and the linear layer need planes.
#[test]
fn a_residual_block_with_channels_last_trains_as_on_the_cpu() {
    residual(Config { lr: 0.05, momentum: 0.9, batch: 5, channels_last: true, ..Config::default() });
}

fn residual(config: Config) {
    let batch = |n: usize, seed: usize| Batch::<f32> {
        x: (0..n * 112).map(|i| ((i + seed) * 37 % 101) as f32 / 50.0 - 1.0).collect(),
        labels: (0..n as u32).map(|i| (i + seed as u32) % 4).collect(),
    };
    let cpu = Config { strategy: "single".into(), ..config.clone() };
    let host = World::threads(1).run(|comm| {
        let mut model = Model::new(block(), 3)?;
        let mut rank = RankTrainer::new(&cpu, block(), &comm)?;
        rank.start(&mut model)?;
        let input = StepInput { lr: cpu.lr, ..StepInput::default() };
        let step = |step: usize| rank.step(&mut batch(if step % 3 == 2 { 3 } else { 5 }, step), input, None);
        let losses = (0..9).map(step).map(|done| done.map(|done| done.loss)).collect::<Result<Vec<_>>>()?;
        rank.download(&mut model.params, &mut model.buffers)?;
        Ok::<_, allfold_trainer::Error>((losses, model.params, model.buffers))
    });
    let (losses, host_params, host_buffers) = host.unwrap().remove(0);
    let config = &config;
    let device = World::threads(1).run(|comm| {
        let mut replica = Replica::of(config, block(), &comm, (machine(), 0))?;
        let (mut start, mut memory) = (Model::new(block(), 3)?, Sgd::<f32>::new(0.9, 0.0, false));
        replica.upload(&start.params, &start.buffers, &mut memory)?;
        // A resumed run whose checkpoint is of its last step evaluates first, in larger batches than it trains in.
        assert!(replica.evaluate(&batch(7, 1))?.0.is_finite());
        let (mut losses, mut peak) = (Vec::new(), 0);
        for step in 0..9 {
            let n = if step % 3 == 2 { 3 } else { 5 };
            replica.stage(&batch(n, step))?;
            let samples =
                replica.start(StepInput { lr: config.lr, ..StepInput::default() }, n as u64, false)?;
            losses.push(replica.finish(samples)?.loss);
            if step == 5 {
                peak = replica.memory().activations;
            }
        }
        // Batches of two sizes: each runs uncaptured once and then as a graph, which takes no more memory.
        assert_eq!(replica.graphs(), 2);
        assert!(peak > 0 && replica.memory().activations == peak);
        replica.download(&mut start.params, &mut start.buffers, &mut memory)?;
        assert_eq!(*memory.state().steps, 9);
        Ok::<_, allfold_trainer::Error>((losses, start.params, start.buffers))
    });
    let (device, params, buffers) = device.unwrap().remove(0);
    for (step, (a, b)) in losses.iter().zip(&device).enumerate() {
        assert!((a - b).abs() < 2e-5 * room() * b.abs(), "step {step}: {a} {b}");
    }
    let near = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).all(|(a, b)| f64::from((a - b).abs()) < 1e-3 * room() * f64::from(b.abs().max(0.1)))
    };
    for place in block().params() {
        let (got, want) = (&params[place.range.clone()], &host_params[place.range.clone()]);
        assert!(near(got, want), "{}: {got:?} {want:?}", place.name);
    }
    assert!(near(&buffers, &host_buffers), "{buffers:?} {host_buffers:?}");
}
