//! Runs in which some ranks compute on a GPU and others on the CPU, and GPUs with unequal shares of the samples.

use super::*;

/// The devices of three ranks of which one computes on a GPU. A run on a real GPU needs one alone.
const ONE_GPU: &str = "cpu,cuda:0,cpu";

fn cnn() -> Config {
    Config { model: "cnn".into(), channels: vec![4, 4], batch_norm: true, ..small() }
}

/// Trains on the CPU alone and on `device`, and compares.
fn same_on(device: &str, config: &Config, within: f64) {
    let ranks = device.split(',').count() as u32;
    let (data, within) = (pictures(), within * room());
    let cpu = run(config, &data, ranks, false).remove(0);
    let unlike = run(&Config { device: device.into(), ..config.clone() }, &data, ranks, true);
    assert!(unlike.iter().all(|rank| rank.weights_hash == unlike[0].weights_hash));
    assert!(unlike.iter().all(|rank| rank.losses == unlike[0].losses));
    assert_near(&cpu, &unlike[0], within);
}

#[test]
fn gpus_and_cpus_train_together() {
    let clipped = Config { optimiser: "adamw".into(), clip_norm: 0.5, score_train: true, ..small() };
    let scaled = Config { amp: "f16".into(), loss_scale: 1e30, clip_norm: 0.5, ..small() };
    let shares = vec![1, 5, 2];
    let parallel = allfold_trainer::config::Parallel { shares, ..Default::default() };
    let cases = [
        ("sgd", small(), 1e-5),
        (
            "micro-batches of small buckets",
            Config { accumulate: 3, first_bucket_kib: 0, bucket_kib: 1, ..small() },
            1e-5,
        ),
        ("adamw, clipped, scored twice", clipped, 1e-5),
        ("f16 from a scale that overflows", scaled, 2e-2),
        ("synchronised batch norms", Config { sync_batch_norm: true, ..cnn() }, 2e-5),
        ("powersgd", Config { hook: "powersgd".into(), ..small() }, 2e-3),
        ("uneven", Config { uneven: true, ..small() }, 1e-5),
        ("unequal shares", Config { parallel, ..small() }, 1e-5),
    ];
    for (what, config, within) in cases {
        println!("{what}");
        same_on(ONE_GPU, &config, within);
    }
}

#[test]
fn unequal_shares_train_on_gpus_as_on_the_cpu() {
    let parallel =
        |shares: &[u32]| allfold_trainer::config::Parallel { shares: shares.to_vec(), ..Default::default() };
    let data = pictures();
    // 32 samples in steps of 3 x 3: the last step has 5, of which the smallest share gets none.
    for (strategy, accumulate) in [("ddp", 1), ("ddp", 2), ("zero2", 1), ("zero3", 2)] {
        let config = Config {
            strategy: strategy.into(),
            parallel: parallel(&[6, 1, 2]),
            batch: 3,
            accumulate,
            exchange: "host".into(),
            ..small()
        };
        agrees(&config, &data, 3, 1e-5);
    }
}

#[test]
fn a_run_on_unlike_devices_continues_on_cpus_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let data = pictures();
    let config = |device: &str, steps: u64| Config {
        device: device.into(),
        max_steps: steps,
        checkpoint_every: 2,
        checkpoint_sharded: steps < 6,
        checkpoint_dir: folder.path().display().to_string(),
        resume: true,
        optimiser: "adam".into(),
        ..small()
    };
    for (device, steps) in [(ONE_GPU, 2), ("cpu", 4), (ONE_GPU, 6)] {
        let done = run(&config(device, steps), &data, 3, device != "cpu").remove(0);
        assert_eq!(done.losses.len() as u64, steps);
    }
    let resumed = run(&config(ONE_GPU, 6), &data, 3, true).remove(0);
    let whole = Config { checkpoint_every: 0, resume: false, ..config("cpu", 6) };
    assert_near(&run(&whole, &data, 3, false).remove(0), &resumed, 1e-5 * room());
}

#[test]
fn what_unlike_devices_cannot_do_is_said_on_every_rank() {
    let data = pictures();
    let said = |config: &Config, ranks: u32| -> String {
        let config = Config { ..config.clone() };
        let each = World::threads(ranks).run_each(|comm| {
            train_with(&config, &data.0, &data.1, &comm, Some(machine()), &mut ()).map(drop)
        });
        let errors = each.unwrap().ranks.into_iter().map(|rank| rank.unwrap_err().to_string());
        let mut errors: Vec<String> = errors.collect();
        errors.dedup();
        errors.join("\n")
    };
    let on = |device: &str| Config { device: device.into(), ..small() };
    assert_eq!(
        said(&on("cuda,cpu,cpu"), 2),
        "`device` names 3 devices and there are 2 ranks; name one for each rank, or one for all"
    );
    assert_eq!(
        said(&Config { strategy: "zero2".into(), ..on("cuda,cpu") }, 2),
        "`strategy` is zero2, and some ranks compute on GPUs and others on the CPU, which needs ddp"
    );
    let error = said(&on("cuda:9,cuda:9"), 2);
    assert!(error.contains("`device` is cuda:9 for rank 0, and its machine has 1"), "{error}");
    let error = said(&Config { broadcast_buffers: true, ..on("cuda,cpu") }, 2);
    assert!(error.contains("`broadcast_buffers` must be false"), "{error}");
}
