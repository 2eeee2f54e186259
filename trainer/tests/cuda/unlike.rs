//! Runs in which some ranks compute on a GPU and others on the CPU, and GPUs with unequal shares of the samples.

use super::*;
use allfold_trainer::config::{AutocastType, GpuExchange};

/// The devices of three ranks of which one computes on a GPU. A run on a real GPU needs one alone.
const ONE_GPU: &str = "cpu,cuda:0,cpu";

fn cnn() -> Config {
    small().with(|c| {
        c.model.name = "cnn".into();
        c.model.channels = vec![4, 4];
        c.model.batch_norm = true;
    })
}

/// Trains on the CPU alone and on `device`, and compares.
fn same_on(device: &str, config: &Config, within: f64) {
    let ranks = device.split(',').count() as u32;
    let (data, within) = (pictures(), within * tolerance_factor());
    let cpu = run(config, &data, ranks, false).remove(0);
    let unlike = run(&config.clone().with(|c| c.device = device.into()), &data, ranks, true);
    assert!(unlike.iter().all(|rank| rank.weights_hash == unlike[0].weights_hash));
    assert!(unlike.iter().all(|rank| rank.losses == unlike[0].losses));
    assert_near(&cpu, &unlike[0], within);
}

#[test]
fn gpus_and_cpus_train_together() {
    let clipped = small().with(|c| {
        c.optimiser.name = "adamw".into();
        c.optimiser.clip_norm = 0.5;
        c.training.score_train = true;
    });
    let scaled = small().with(|c| {
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 1e30;
        c.optimiser.clip_norm = 0.5;
    });
    let shares = vec![1, 5, 2];
    let parallel = allfold_trainer::config::ParallelConfig { shares, ..Default::default() };
    let cases = [
        ("sgd", small(), 1e-5),
        (
            "micro-batches of small buckets",
            small().with(|c| {
                c.training.accumulate = 3;
                c.ddp.first_bucket_kib = 0;
                c.ddp.bucket_kib = 1;
            }),
            1e-5,
        ),
        ("adamw, clipped, scored twice", clipped, 1e-5),
        ("f16 from a scale that overflows", scaled, 2e-2),
        ("synchronised batch norms", cnn().with(|c| c.model.sync_batch_norm = true), 2e-5),
        ("powersgd", small().with(|c| c.ddp.hook = "powersgd".into()), 2e-3),
        ("uneven", small().with(|c| c.data.uneven = true), 1e-5),
        ("unequal shares", small().with(|c| c.parallel = parallel), 1e-5),
    ];
    for (what, config, within) in cases {
        println!("{what}");
        same_on(ONE_GPU, &config, within);
    }
}

#[test]
fn unequal_shares_train_on_gpus_as_on_the_cpu() {
    let parallel = |shares: &[u32]| allfold_trainer::config::ParallelConfig {
        shares: shares.to_vec(),
        ..Default::default()
    };
    let data = pictures();
    // 32 samples in steps of 3 x 3: the last step has 5, of which the smallest share gets none.
    for (strategy, accumulate) in [("ddp", 1), ("ddp", 2), ("zero2", 1), ("zero3", 2)] {
        let config = small().with(|c| {
            c.strategy = strategy.into();
            c.parallel = parallel(&[6, 1, 2]);
            c.training.batch = 3;
            c.training.accumulate = accumulate;
            c.exchange = GpuExchange::Host;
        });
        agrees(&config, &data, 3, 1e-5);
    }
}

#[test]
fn a_run_on_unlike_devices_continues_on_cpus_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let data = pictures();
    let config = |device: &str, steps: u64| {
        small().with(|c| {
            c.device = device.into();
            c.training.max_steps = steps;
            c.checkpoint.every = 2;
            c.checkpoint.sharded = steps < 6;
            c.checkpoint.dir = folder.path().display().to_string();
            c.checkpoint.resume = true;
            c.optimiser.name = "adam".into();
        })
    };
    for (device, steps) in [(ONE_GPU, 2), ("cpu", 4), (ONE_GPU, 6)] {
        let done = run(&config(device, steps), &data, 3, device != "cpu").remove(0);
        assert_eq!(done.losses.len() as u64, steps);
    }
    let resumed = run(&config(ONE_GPU, 6), &data, 3, true).remove(0);
    let whole = config("cpu", 6).with(|c| {
        c.checkpoint.every = 0;
        c.checkpoint.resume = false;
    });
    assert_near(&run(&whole, &data, 3, false).remove(0), &resumed, 1e-5 * tolerance_factor());
}

#[test]
fn what_unlike_devices_cannot_do_is_said_on_every_rank() {
    let data = pictures();
    let said = |config: &Config, ranks: u32| -> String {
        let each = World::threads(ranks)
            .run_each(|comm| train_with(config, &data.0, &data.1, &comm, Some(machine()), &mut ()).map(drop));
        let errors = each.unwrap().ranks.into_iter().map(|rank| rank.unwrap_err().to_string());
        let mut errors: Vec<String> = errors.collect();
        errors.dedup();
        errors.join("\n")
    };
    let on = |device: &str| small().with(|c| c.device = device.into());
    assert_eq!(
        said(&on("cuda,cpu,cpu"), 2),
        "`device` names 3 devices and there are 2 ranks; name one for each rank, or one for all"
    );
    assert_eq!(
        said(&on("cuda,cpu").with(|c| c.strategy = "zero2".into()), 2),
        "`strategy` is zero2, and some ranks compute on GPUs and others on the CPU, which needs ddp"
    );
    let error = said(&on("cuda:9,cuda:9"), 2);
    assert!(error.contains("`device` is cuda:9 for rank 0, and its machine has 1"), "{error}");
    let error = said(&on("cuda,cpu").with(|c| c.ddp.broadcast_buffers = true), 2);
    assert!(error.contains("`ddp.broadcast_buffers` must be false"), "{error}");
}
