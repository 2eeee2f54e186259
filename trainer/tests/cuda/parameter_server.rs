//! Parameter servers on devices: losses, scores and weights of the CPU where all workers wait for each other, over every path of the
//! exchange; and workers that do not wait. On shims that detect races.

use crate::{
    agrees, assert_near, can_try, cnn, pictures, placed, run as run_on, small, tolerance_factor, zero,
};
use allfold_trainer::Config;
use allfold_trainer::config::AutocastType;

fn served(config: Config, servers: usize) -> Config {
    let mut config = config.with(|c| c.strategy = "parameter_server".into());
    config.parallel.servers = servers;
    config
}

#[test]
fn servers_step_as_on_the_cpu() {
    let data = pictures();
    let adam = small().with(|c| {
        c.optimiser.name = "adamw".into();
        c.optimiser.lr = 0.01;
        c.optimiser.clip_norm = 0.5;
    });
    let lars = small().with(|c| {
        c.optimiser.name = "lars".into();
        c.optimiser.trust = 0.02;
        c.optimiser.weight_decay = 0.01;
    });
    for (config, ranks, within) in [
        (served(small(), 1), 2, 1e-5),
        // Two servers have parts of each parameter, whose norms they share.
        (served(lars.clone(), 1), 3, 1e-5),
        (served(lars, 2), 4, 1e-5),
        (served(adam.with(|c| c.training.accumulate = 2), 2), 4, 1e-5),
        (
            served(
                small().with(|c| {
                    c.optimiser.momentum = 0.0;
                    c.precision.loss_scale = 1024.0;
                }),
                2,
            ),
            3,
            1e-5,
        ),
        // The scale is halved until gradients are finite.
        (
            served(
                small().with(|c| {
                    c.precision.amp = AutocastType::F16;
                    c.precision.loss_scale = 1e6;
                }),
                1,
            ),
            3,
            2e-2,
        ),
        (served(small().with(|c| c.model.frozen = vec!["fc1".into()]), 1), 3, 1e-5),
        (served(cnn().with(|c| c.model.sync_batch_norm = true), 1), 3, 5e-5),
    ] {
        agrees(&config, &data, ranks, within);
    }
}

#[test]
fn every_path_serves() {
    let data = pictures();
    let config = served(small(), 1);
    let cpu = run_on(&config, &data, 3, false).remove(0);
    for exchange in ["host", "device", "scheduled", "nccl"].into_iter().filter(|way| can_try(way, 3)) {
        let ran =
            zero::run(&config.clone().with(|c| c.set("exchange", exchange).unwrap()), &data, 3, &placed(3));
        assert_near(&cpu, &ran, 1e-5 * tolerance_factor());
    }
}

/// Which gradients a server has applied when it serves a worker depends on time; that the loss falls, and that all ranks end with the
/// servers' weights, does not.
#[test]
fn workers_that_do_not_wait_train_over_every_path() {
    let data = pictures();
    for (optimiser, lr) in [("sgd", 0.05), ("adam", 0.01)] {
        let mut config = served(
            small().with(|c| {
                c.optimiser.name = optimiser.into();
                c.optimiser.lr = lr;
                c.training.epochs = 10;
            }),
            2,
        );
        config.parallel.staleness = 2;
        for exchange in ["host", "device", "nccl"].into_iter().filter(|way| can_try(way, 4)) {
            let config = config.clone().with(|c| c.set("exchange", exchange).unwrap());
            let losses = zero::run(&config, &data, 4, &placed(4)).losses;
            // A step's loss is that of the batch of one worker, so that epochs are compared.
            let epoch = losses.len() / config.training.epochs as usize;
            let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
            let (first, last) = (mean(&losses[..epoch]), mean(&losses[losses.len() - epoch..]));
            assert!(last < 0.7 * first, "{optimiser} over {exchange}: {losses:?}");
        }
    }
}
