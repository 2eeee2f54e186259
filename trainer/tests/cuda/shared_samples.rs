//! Ranks on devices that share the positions of a sample (context and sequence parallelism), or the experts of a mixture: losses, scores
//! and weights of the CPU, with dropout, clipping, loss scales and autocast, over every path of the exchange. On shims that detect races.

use crate::{agrees, can_try, sentences, tolerance_factor};
use crate::{assert_near, placed, run as run_on, zero};
use allfold_trainer::config::{AutocastType, StageSharing};
use allfold_trainer::{Config, Dataset};

fn gpt() -> Config {
    Config::default().with(|c| {
        c.model.name = "gpt".into();
        c.model.layers = 1;
        c.model.width = 32;
        c.model.heads = 2;
        c.model.dropout = 0.2;
        c.training.batch = 4;
        c.training.epochs = 1;
        c.optimiser.name = "adamw".into();
        c.optimiser.lr = 3e-3;
    })
}

fn context() -> Config {
    gpt().with(|c| {
        c.strategy = "context".into();
        c.model.attention_dropout = 0.3;
    })
}

/// Ranks that share layers, and the positions between them.
fn sequence(base: &Config) -> Config {
    let mut config = base.clone().with(|c| c.strategy = "tensor".into());
    config.parallel.sequence_parallel = true;
    config
}

/// A mixture in which some experts are full.
fn expert() -> Config {
    let mixture = gpt().with(|c| {
        c.model.experts = 4;
        c.model.experts_per_token = 2;
        c.model.capacity_factor = 1.0;
        c.model.balance_loss = 0.1;
    });
    mixture.with(|c| c.strategy = "expert".into())
}

fn text(positions: usize) -> (Dataset, Dataset) {
    (sentences(16, positions, 11), sentences(5, positions, 11))
}

fn sharded(config: Config, sharing: StageSharing) -> Config {
    let mut config = config;
    config.parallel.sharding = sharing;
    config
}

#[test]
fn ranks_that_share_samples_train_and_score_as_on_the_cpu() {
    let text = text(16);
    for (config, ranks, within) in [
        (context(), 2, 5e-5),
        (
            context().with(|c| {
                c.training.accumulate = 2;
                c.optimiser.clip_norm = 0.5;
                c.model.tied = false;
            }),
            4,
            5e-5,
        ),
        (
            context().with(|c| {
                c.precision.amp = AutocastType::F16;
                c.precision.loss_scale = 1024.0;
            }),
            2,
            3e-2,
        ),
        (
            sharded(
                context().with(|c| c.model.frozen = vec!["transformer.h.0.mlp.c_fc".into()]),
                StageSharing::Zero2,
            ),
            2,
            5e-5,
        ),
        (sequence(&gpt()), 2, 5e-5),
        (
            sequence(&gpt()).with(|c| {
                c.training.accumulate = 2;
                c.optimiser.clip_norm = 0.5;
                c.model.attention_dropout = 0.3;
                c.model.tied = false;
            }),
            2,
            5e-5,
        ),
        (sequence(&gpt()).with(|c| c.precision.amp = AutocastType::Bf16), 2, 3e-2),
        (expert(), 2, 5e-5),
        (
            expert().with(|c| {
                c.training.accumulate = 2;
                c.optimiser.clip_norm = 0.5;
            }),
            4,
            5e-5,
        ),
        (
            expert().with(|c| {
                c.optimiser.name = "lars".into();
                c.optimiser.lr = 0.1;
            }),
            4,
            5e-5,
        ),
        (sharded(expert().with(|c| c.precision.loss_scale = 1024.0), StageSharing::Zero3), 2, 5e-5),
        (expert().with(|c| c.precision.amp = AutocastType::Bf16), 2, 3e-2),
    ] {
        let (cpu, device) = agrees(&config, &text, ranks, within);
        if config.precision.amp == AutocastType::None {
            assert_eq!(cpu.test.correct, device.test.correct);
        }
    }
}

/// Chunks of 3 positions, whose draws begin within a group of four, in f32; 16-bit types refuse them.
#[test]
fn chunks_of_any_length_drop_what_the_cpu_drops() {
    let data = text(12);
    agrees(&context(), &data, 2, 5e-5);
    let narrow = context().with(|c| c.precision.amp = AutocastType::Bf16);
    let refused = allfold_collectives::World::threads(2).run(|comm| {
        let machine = Some(placed(1));
        allfold_trainer::train_with(&narrow, &data.0, &data.1, &comm, machine, &mut ()).map(drop)
    });
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("multiple of 4") && !error.contains('\n'), "{error}");
}

#[test]
fn every_path_shares_samples() {
    let text = text(16);
    for config in [context(), sequence(&gpt()), expert().with(|c| c.model.capacity_factor = 0.0)] {
        let cpu = run_on(&config, &text, 2, false).remove(0);
        for exchange in ["host", "device", "scheduled", "nccl"].into_iter().filter(|way| can_try(way, 2)) {
            // The third step of a kind is a replay of a graph, where the path can be captured.
            let config = config.clone().with(|c| c.set("exchange", exchange).unwrap());
            let ran = zero::run(&config, &text, 2, &placed(2));
            assert_near(&cpu, &ran, 5e-5 * tolerance_factor());
        }
    }
}
