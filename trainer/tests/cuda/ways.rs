//! Training over every path of the exchange, on shims that detect races: with several hooks and with AMP, on one device and on two,
//! captured and not. Also: an error of one line names the missing part of a machine.

use crate::{assert_near, cnn, pictures, small};
use allfold_collectives::World;
use allfold_cuda::CudaMachine;
use allfold_gpu::nccl::{StandIn, stand_in};
use allfold_standin::{Shim, ShimOptions};
use allfold_trainer::config::AutocastType;
use allfold_trainer::{Config, Dataset, TrainResult, train_with};
use std::sync::Arc;

pub(super) fn devices(devices: usize) -> Arc<dyn CudaMachine> {
    of(ShimOptions { devices, ..ShimOptions::default() })
}

fn of(options: ShimOptions) -> Arc<dyn CudaMachine> {
    Shim::with(options).unwrap()
}

type Trained = allfold_trainer::Result<Vec<TrainResult>>;

fn run(
    config: &Config,
    (train, test): &(Dataset, Dataset),
    ranks: u32,
    machine: Option<&Arc<dyn CudaMachine>>,
) -> Trained {
    World::threads(ranks).run(|comm| train_with(config, train, test, &comm, machine.cloned(), &mut ()))
}

pub(super) fn by(exchange: &str, config: &Config) -> Config {
    config.clone().with(|c| {
        c.set("exchange", exchange).unwrap();
        c.ddp.first_bucket_kib = 0;
        c.ddp.bucket_kib = 1;
    })
}

/// The shim would report a race of two streams, an access that a launch does not name, or a capture that the driver refuses.
#[test]
fn every_way_trains_alike_without_races_on_one_and_two_devices() {
    let data = pictures();
    let hook = |hook: &str| {
        small().with(|c| {
            c.ddp.hook = hook.into();
            c.ddp.topk_share = 0.2;
            c.ddp.local_steps = 2;
        })
    };
    let amp = small().with(|c| {
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 512.0;
    });
    let sync = cnn().with(|c| c.model.sync_batch_norm = true);
    println!(
        "{:<10} {:<10} {:<4} {:>7} {:>5} {:<6} races",
        "exchange", "hook", "amp", "devices", "steps", "bits"
    );
    for (config, within) in [
        (hook("none"), 1e-5),
        (hook("bf16"), 1e-2),
        (hook("topk"), 2e-3),
        (hook("local_sgd"), 1e-5),
        (amp, 2e-2),
        (small().with(|c| c.training.accumulate = 2), 1e-5),
        (sync, 2e-5),
    ] {
        let cpu = run(&by("host", &config), &data, 2, None).unwrap().remove(0);
        for count in [1, 2] {
            let machine = devices(count);
            let mut bits: Option<(Vec<f64>, u64)> = None;
            // NCCL needs a GPU for each rank.
            let ways: &[&str] = &["host", "device", "scheduled", "nccl"][..2 * count];
            for exchange in ways.iter().copied() {
                let config = by(exchange, &config);
                let ranks = run(&config, &data, 2, Some(&machine)).unwrap();
                assert_eq!(ranks[0].weights_hash, ranks[1].weights_hash);
                assert_near(&cpu, &ranks[0], within);
                let mine = (ranks[0].losses.clone(), ranks[0].weights_hash);
                // Only NCCL promises no order of its sums.
                let promised = exchange != "nccl";
                if promised {
                    assert_eq!(*bits.get_or_insert_with(|| mine.clone()), mine, "{exchange}");
                }
                let (hook, amp, steps) = (&config.ddp.hook, config.precision.amp.to_string(), mine.0.len());
                let same = if promised { "equal" } else { "near" };
                println!("{exchange:<10} {hook:<10} {amp:<4} {count:>7} {steps:>5} {same:<6} 0");
            }
        }
    }
}

/// Seeded defect 6: a capture in which no bucket is sent must not wait for the stream of the sums over ranks.
#[test]
fn a_join_without_sums_would_take_the_capture_into_a_stream_that_is_not_captured() {
    let data = pictures();
    let local = by(
        "nccl",
        &small().with(|c| {
            c.ddp.hook = "local_sgd".into();
            c.ddp.local_steps = 2;
        }),
    );
    let seeded = of(ShimOptions { devices: 2, seeded: &[6], ..ShimOptions::default() });
    let error = run(&local, &data, 2, Some(&seeded)).unwrap_err().to_string();
    assert!(error.contains("STREAM_CAPTURE_ISOLATION"), "{error}");
    run(&local, &data, 2, Some(&devices(2))).unwrap();
}

/// 15 pictures, 2 ranks, batches of 4: in the last step of an epoch, rank 0 has 4 samples and rank 1 has 3.
fn uneven(exchange: &str) -> (Config, (Dataset, Dataset)) {
    let (train, test) = pictures();
    let config = by(
        exchange,
        &small().with(|c| {
            c.data.uneven = true;
            c.training.epochs = 4;
        }),
    );
    (config, (train.first(15), test))
}

/// Trains a whole run of the case that `ends::ranks_that_capture_by_their_own_samples_alone_would_disagree` tests.
#[test]
fn ranks_with_uneven_batches_train_as_on_the_cpu() {
    for exchange in ["nccl", "device", "scheduled", "host"] {
        let (config, data) = uneven(exchange);
        let cpu = run(&config, &data, 2, None).unwrap().remove(0);
        let ranks = run(&config, &data, 2, Some(&devices(2))).unwrap();
        assert_near(&cpu, &ranks[0], 1e-5);
    }
}

/// Some ranks have no sample in a step, micro-batches differ in size, and a batch norm is over all ranks.
#[test]
fn ranks_without_samples_take_part_in_every_sum() {
    let (train, test) = pictures();
    for (config, samples) in [
        (
            small().with(|c| {
                c.data.uneven = true;
                c.training.epochs = 3;
            }),
            9,
        ),
        (
            small().with(|c| {
                c.data.uneven = true;
                c.training.epochs = 3;
                c.training.accumulate = 3;
                c.training.batch = 6;
            }),
            21,
        ),
        (
            cnn().with(|c| {
                c.data.uneven = true;
                c.model.sync_batch_norm = true;
                c.training.epochs = 3;
            }),
            9,
        ),
    ] {
        let data = (train.clone().first(samples), test.clone());
        let cpu = run(&config, &data, 2, None).unwrap().remove(0);
        for exchange in ["nccl", "device"] {
            let ranks = run(&by(exchange, &config), &data, 2, Some(&devices(2))).unwrap();
            assert_near(&cpu, &ranks[0], 2e-5);
        }
    }
}

/// If a machine lacks something, a one-line error names it, and `auto` takes another path if there is one.
#[test]
fn what_a_machine_lacks_is_said_in_one_line() {
    let data = pictures();
    let one_line = |config: &Config, machine: &Arc<dyn CudaMachine>| {
        let text = run(config, &data, 2, Some(machine)).unwrap_err().to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    };
    let options = ShimOptions { devices: 2, ..ShimOptions::default() };

    let one_gpu = of(ShimOptions { one_gpu: true, ..options });
    stand_in(&one_gpu, StandIn { offered: true, ..StandIn::default() });
    let text = one_line(&by("nccl", &small()), &one_gpu);
    assert!(text.contains("GPU") && text.contains("rank"), "{text}");
    run(&by("auto", &small()), &data, 2, Some(&one_gpu)).unwrap();

    let apart = of(ShimOptions { peers: false, ..options });
    let text = one_line(&by("device", &small()), &apart);
    assert!(text.contains("reach each other"), "{text}");
    run(&by("auto", &small()), &data, 2, Some(&apart)).unwrap();

    let text = one_line(&by("device", &small()), &of(ShimOptions { memory: 20_000, ..options }));
    assert!(text.contains("out of memory") && text.contains("wanted"), "{text}");
}
