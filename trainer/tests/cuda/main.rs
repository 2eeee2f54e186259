//! Training on the shim gives the CPU's losses, evaluation and weights, whatever the model and the precision. The tests of this
//! file run on a GPU if ALLFOLD_TEST_GPU is set, with larger tolerances: the GPU's libraries sum in their own orders.
#![allow(missing_docs, clippy::unwrap_used)]

mod ahead;
mod axes;
mod data_parallel;
mod ends;
mod parameter_server;
mod pipeline;
mod residual;
mod shared_samples;
mod tensor;
mod unlike;
mod ways;
mod zero;

use allfold_collectives::World;
use allfold_cuda::CudaMachine;
use allfold_standin::{FiberOrder, Shim, ShimOptions};
use allfold_trainer::Builder;
use allfold_trainer::config::{AutocastType, ElementType, LossName};
use allfold_trainer::cuda::Replica;
use allfold_trainer::data::{Samples, digits};
use allfold_trainer::engine::StepInput;
use allfold_trainer::layers::{BatchNorm, Linear};
use allfold_trainer::{Batch, Config, Dataset, Network, TrainResult, train_with};
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
fn tolerance_factor() -> f64 {
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
    let config = config.clone().with(|c| {
        // The key `device`, as a user sets it: the combinations that it excludes must not be tried here.
        if shim && c.device == "cpu" {
            c.device = "cuda".into();
        }
    });
    World::threads(ranks)
        .run(|comm| train_with(&config, train, test, &comm, shared.clone(), &mut ()))
        .unwrap()
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
    let within = within * tolerance_factor();
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
    Config::default().with(|c| {
        c.model.name = "mlp".into();
        c.model.hidden = vec![16];
        c.training.batch = 4;
        c.training.epochs = 2;
        c.optimiser.lr = 0.1;
    })
}

#[test]
fn an_mlp_trains_as_on_the_cpu_on_one_and_two_ranks() {
    let data = pictures();
    for (ranks, accumulate, exchange) in [(1, 1, "auto"), (2, 1, "device"), (3, 1, "host"), (2, 3, "device")]
    {
        let config = small().with(|c| {
            c.training.accumulate = accumulate;
            c.set("exchange", exchange).unwrap();
            c.ddp.first_bucket_kib = 0;
            c.ddp.bucket_kib = 0;
        });
        let (cpu, device) = agrees(&config, &data, ranks, 1e-5);
        assert!(ranks > 1 || device.losses.last().unwrap() < &device.losses[0]);
        assert_eq!(cpu.test.correct, device.test.correct);
    }
}

/// Devices and host sum in the CPU's order, so both paths of the exchange give the same bits.
#[test]
fn sums_over_devices_and_over_the_host_are_the_same_bits() {
    let data = pictures();
    let by = |exchange: &str| {
        run(&small().with(|c| c.set("exchange", exchange).unwrap()), &data, 3, true).remove(0)
    };
    let (device, host) = (by("device"), by("host"));
    assert_eq!((device.losses, device.weights_hash), (host.losses, host.weights_hash));
}

/// Clipping, weight decay and loss scales change the losses as on the CPU.
#[test]
fn optimisers_clip_and_step_as_the_cpus() {
    let data = pictures();
    let some = [
        small().with(|c| {
            c.optimiser.name = "adam".into();
            c.optimiser.lr = 0.01;
        }),
        small().with(|c| {
            c.optimiser.name = "adamw".into();
            c.optimiser.lr = 0.01;
            c.optimiser.weight_decay = 0.1;
            c.optimiser.clip_norm = 0.5;
        }),
        small().with(|c| {
            c.optimiser.nesterov = true;
            c.training.loss = LossName::Mse;
        }),
        small().with(|c| {
            c.optimiser.momentum = 0.0;
            c.optimiser.clip_norm = 0.1;
            c.precision.loss_scale = 1024.0;
        }),
        small().with(|c| c.model.frozen = vec!["fc1".into()]),
    ];
    let plain = run(&small(), &data, 1, true).remove(0);
    for config in some {
        let (_, device) = agrees(&config, &data, 1, 1e-5);
        assert_ne!(device.losses, plain.losses, "{config:?} changes nothing");
    }
}

/// A small network of convolutions, each with its batch norm.
fn cnn() -> Config {
    Config::default().with(|c| {
        c.model.name = "cnn".into();
        c.model.channels = vec![4, 6];
        c.training.batch = 4;
        c.training.epochs = 1;
        c.optimiser.lr = 0.05;
    })
}

#[test]
fn a_cnn_with_synchronised_batch_norm_and_amp_trains_as_on_the_cpu() {
    let data = pictures();
    let cnn = cnn();
    let amp = |amp: &str, loss_scale| {
        cnn.clone().with(|c| {
            c.set("precision.amp", amp).unwrap();
            c.precision.loss_scale = loss_scale;
            c.model.sync_batch_norm = true;
        })
    };
    for (config, ranks, within) in [
        (cnn.clone().with(|c| c.model.sync_batch_norm = true), 2, 2e-5),
        (cnn.clone().with(|c| c.model.batch_norm = false), 1, 2e-5),
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
    let config = small().with(|c| {
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 3e8;
        c.optimiser.lr = 0.05;
    });
    let (cpu, _) = agrees(&config, &data, 1, 2e-2);
    let steady = run(&config.with(|c| c.precision.loss_scale = 0.0), &data, 1, false).remove(0);
    assert_ne!(cpu.losses, steady.losses, "no step was skipped");
}

/// A picture has values above f16's range: its step is skipped, and the running statistics for the evaluation stay finite.
#[test]
fn running_statistics_outlive_a_batch_that_overflows() {
    let mut data = pictures();
    let Samples::Numbers(pixels) = &mut data.0.samples else { panic!("the digits are numbers") };
    pixels[..64].fill(1e6);
    for (sync_batch_norm, ranks, accumulate) in [(false, 1, 1), (false, 1, 2), (true, 2, 1)] {
        let config = cnn().with(|c| {
            c.precision.amp = AutocastType::F16;
            c.precision.loss_scale = 512.0;
            c.model.sync_batch_norm = sync_batch_norm;
            c.training.accumulate = accumulate;
        });
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
    let lars = cnn.clone().with(|c| {
        c.optimiser.name = "lars".into();
        c.optimiser.lr = 2.0;
        c.optimiser.trust = 0.01;
    });
    for (config, ranks, within) in [
        (cnn.clone().with(|c| c.model.sync_batch_norm = true), 2, 2e-5),
        (cnn.clone().with(|c| c.model.batch_norm = false), 1, 2e-5),
        (
            cnn.with(|c| {
                c.precision.amp = AutocastType::F16;
                c.precision.loss_scale = 512.0;
            }),
            1,
            2e-2,
        ),
        (lars, 1, 2e-5),
    ] {
        let cpu = run(&config, &data, ranks, false).remove(0);
        let there = run(&config.clone().with(|c| c.channels_last = true), &data, ranks, true).remove(0);
        assert_near(&cpu, &there, within * tolerance_factor());
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
    let last = small().with(|c| c.channels_last = true);
    assert!(refused(&last, true).contains("this one has none"));
    assert!(refused(&last, false).contains("is for device \"cuda\""));
    assert!(
        refused(&small().with(|c| c.precision.dtype = ElementType::F64), true).contains("GPUs train in f32")
    );
    let local = small().with(|c| {
        c.ddp.hook = "local_sgd".into();
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 8.0;
    });
    assert!(refused(&local, true).contains("no loss scale"));
}

/// LARS adapts the rates of matrices by the norms of weights and gradients; also with a narrow copy of the weights.
#[test]
fn lars_steps_as_the_cpus() {
    let data = pictures();
    let lars = small().with(|c| {
        c.optimiser.name = "lars".into();
        c.optimiser.lr = 2.0;
        c.optimiser.trust = 0.02;
        c.optimiser.weight_decay = 0.01;
    });
    agrees(&lars, &data, 1, 1e-5);
    agrees(&lars.clone().with(|c| c.model.frozen = vec!["fc1".into()]), &data, 2, 1e-5);
    agrees(
        &lars.with(|c| {
            c.precision.amp = AutocastType::F16;
            c.precision.loss_scale = 512.0;
        }),
        &data,
        1,
        2e-2,
    );
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
        let config = small().with(|c| {
            c.ddp.hook = hook.into();
            c.ddp.topk_share = 0.2;
            c.ddp.local_steps = 3;
            c.ddp.first_bucket_kib = bucket_kib;
            c.ddp.bucket_kib = bucket_kib;
        });
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
        let config = small().with(|c| {
            c.ddp.hook = hook.into();
            c.ddp.topk_share = 0.2;
            c.checkpoint.dir = folder.to_string_lossy().into_owned();
            c.checkpoint.every = 3;
            c.checkpoint.sharded = sharded;
        });
        let whole = run(&config, &data, 2, true).remove(0);
        std::fs::remove_dir_all(&folder).unwrap();
        run(&config.clone().with(|c| c.training.max_steps = 3), &data, 2, true);
        let rest = run(&config.clone().with(|c| c.checkpoint.resume = true), &data, 2, true).remove(0);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((whole.losses, whole.weights_hash), (rest.losses, rest.weights_hash), "{hook}");
    }
}

/// Rank 0's running statistics are broadcast to all ranks before every step.
#[test]
fn buffers_are_broadcast_as_on_the_cpu() {
    let data = pictures();
    for exchange in ["device", "host"] {
        let config = Config::default().with(|c| {
            c.model.name = "cnn".into();
            c.model.channels = vec![4];
            c.training.batch = 4;
            c.training.epochs = 1;
            c.ddp.broadcast_buffers = true;
            c.set("exchange", exchange).unwrap();
        });
        agrees(&config, &data, 2, 2e-5);
    }
}

#[test]
fn a_small_gpt_trains_as_on_the_cpu() {
    let data = (sentences(8, 9, 11), sentences(3, 9, 11));
    let gpt = Config::default().with(|c| {
        c.model.name = "gpt".into();
        c.model.layers = 1;
        c.model.width = 64;
        c.model.heads = 2;
        c.model.dropout = 0.2;
        c.training.batch = 2;
        c.training.epochs = 1;
        c.optimiser.name = "adamw".into();
        c.optimiser.lr = 3e-3;
    });
    for (config, ranks, within) in [
        (gpt.clone(), 2, 5e-5),
        (
            gpt.clone().with(|c| {
                c.model.tied = false;
                c.model.dropout = 0.0;
            }),
            1,
            5e-5,
        ),
        // Heads of 12 columns, with dropout of attention probabilities.
        (
            gpt.clone().with(|c| {
                c.model.width = 36;
                c.model.heads = 3;
                c.model.attention_dropout = 0.3;
            }),
            2,
            5e-5,
        ),
        (gpt.with(|c| c.precision.amp = AutocastType::Bf16), 1, 3e-2),
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
