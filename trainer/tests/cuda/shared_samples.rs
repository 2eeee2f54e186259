//! Ranks on devices that share the positions of a sample (context and sequence parallelism), or the experts of a mixture: losses, scores and weights of the CPU, with
//! dropout, clipping, loss scales and autocast, over every path of the exchange. On shims that detect races.

use crate::{agrees, can_try, room, sentences};
use crate::{assert_near, placed, run as run_on, zero};
use allfold_trainer::config::StageSharing;
use allfold_trainer::{Config, Dataset};

fn gpt() -> Config {
    Config {
        model: "gpt".into(),
        layers: 1,
        width: 32,
        heads: 2,
        dropout: 0.2,
        batch: 4,
        epochs: 1,
        optimiser: "adamw".into(),
        lr: 3e-3,
        ..Config::default()
    }
}

fn context() -> Config {
    Config { strategy: "context".into(), attention_dropout: 0.3, ..gpt() }
}

/// Ranks that share layers, and the positions between them.
fn sequence(base: &Config) -> Config {
    let mut config = Config { strategy: "tensor".into(), ..base.clone() };
    config.parallel.sequence_parallel = true;
    config
}

/// A mixture in which some experts are full.
fn expert() -> Config {
    let mixture =
        Config { experts: 4, experts_per_token: 2, capacity_factor: 1.0, balance_loss: 0.1, ..gpt() };
    Config { strategy: "expert".into(), ..mixture }
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
        (Config { accumulate: 2, clip_norm: 0.5, tied: false, ..context() }, 4, 5e-5),
        (Config { amp: "f16".into(), loss_scale: 1024.0, ..context() }, 2, 3e-2),
        (
            sharded(
                Config { frozen: vec!["transformer.h.0.mlp.c_fc".into()], ..context() },
                StageSharing::Zero2,
            ),
            2,
            5e-5,
        ),
        (sequence(&gpt()), 2, 5e-5),
        (
            Config { accumulate: 2, clip_norm: 0.5, attention_dropout: 0.3, tied: false, ..sequence(&gpt()) },
            2,
            5e-5,
        ),
        (Config { amp: "bf16".into(), ..sequence(&gpt()) }, 2, 3e-2),
        (expert(), 2, 5e-5),
        (Config { accumulate: 2, clip_norm: 0.5, ..expert() }, 4, 5e-5),
        (Config { optimiser: "lars".into(), lr: 0.1, ..expert() }, 4, 5e-5),
        (sharded(Config { loss_scale: 1024.0, ..expert() }, StageSharing::Zero3), 2, 5e-5),
        (Config { amp: "bf16".into(), ..expert() }, 2, 3e-2),
    ] {
        let (cpu, device) = agrees(&config, &text, ranks, within);
        if config.amp.is_empty() {
            assert_eq!(cpu.test.correct, device.test.correct);
        }
    }
}

/// Chunks of 3 positions, whose draws begin within a group of four, in f32; 16-bit types refuse them.
#[test]
fn chunks_of_any_length_drop_what_the_cpu_drops() {
    let data = text(12);
    agrees(&context(), &data, 2, 5e-5);
    let narrow = Config { amp: "bf16".into(), ..context() };
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
    for config in [context(), sequence(&gpt()), Config { capacity_factor: 0.0, ..expert() }] {
        let cpu = run_on(&config, &text, 2, false).remove(0);
        for exchange in ["host", "device", "scheduled", "nccl"].into_iter().filter(|way| can_try(way, 2)) {
            // The third step of a kind is a replay of a graph, where the path can be captured.
            let config = Config { exchange: exchange.into(), ..config.clone() };
            let ran = zero::run(&config, &text, 2, &placed(2));
            assert_near(&cpu, &ran, 5e-5 * room());
        }
    }
}
