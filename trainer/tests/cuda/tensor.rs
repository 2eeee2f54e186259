//! Tensor parallelism on devices: losses, scores and weights of the CPU, alone and with ZeRO and pipelines, with clipping, loss scales and
//! autocast, for classes and rows of a table that ranks do not divide evenly. On shims that detect races.

use crate::ways::by;
use crate::{agrees, assert_near, can_try, pictures, placed, run, sentences, small, tolerance_factor};
use allfold_collectives::{Communicator, World};
use allfold_trainer::config::{AutocastType, LossName, StageSharing};
use allfold_trainer::{Config, Dataset, TrainResult, train_with};

fn tensor(config: &Config) -> Config {
    config.clone().with(|c| c.strategy = "tensor".into())
}

/// A GPT with 11 tokens, which 2 ranks share as 5 and 6.
fn gpt() -> Config {
    Config::default().with(|c| {
        c.model.name = "gpt".into();
        c.model.layers = 2;
        c.model.width = 32;
        c.model.heads = 2;
        c.model.dropout = 0.2;
        c.training.batch = 4;
        c.training.epochs = 1;
        c.optimiser.name = "adamw".into();
        c.optimiser.lr = 3e-3;
    })
}

fn text() -> (Dataset, Dataset) {
    (sentences(16, 9, 11), sentences(5, 9, 11))
}

fn over(exchange: &str, config: &Config, data: &(Dataset, Dataset), ranks: u32) -> TrainResult {
    let (machine, config) = (placed(ranks as usize), by(exchange, config));
    let body =
        |comm: Communicator| train_with(&config, &data.0, &data.1, &comm, Some(machine.clone()), &mut ());
    let ran = World::threads(ranks).run(body).unwrap();
    assert!(
        ran.iter().all(|rank| (rank.weights_hash, &rank.losses) == (ran[0].weights_hash, &ran[0].losses))
    );
    ran.into_iter().next().unwrap()
}

#[test]
fn ranks_that_share_layers_train_and_score_as_on_the_cpu() {
    let (digits, text) = (pictures(), text());
    let wide = small().with(|c| c.model.hidden = vec![9, 8]);
    for (config, data, ranks, within) in [
        (wide.clone(), &digits, 2, 1e-5),
        (wide.clone().with(|c| c.training.loss = LossName::Mse), &digits, 3, 1e-5),
        (
            wide.clone().with(|c| {
                c.optimiser.name = "lars".into();
                c.optimiser.lr = 0.5;
            }),
            &digits,
            3,
            1e-5,
        ),
        (wide.with(|c| c.model.frozen = vec!["fc2".into()]), &digits, 2, 1e-5),
        (gpt().with(|c| c.model.attention_dropout = 0.3), &text, 2, 5e-5),
        (
            gpt().with(|c| {
                c.model.tied = false;
                c.training.accumulate = 2;
            }),
            &text,
            2,
            5e-5,
        ),
        (gpt().with(|c| c.precision.amp = AutocastType::Bf16), &text, 2, 3e-2),
    ] {
        let (cpu, device) = agrees(&tensor(&config), data, ranks, within);
        if config.precision.amp == AutocastType::None {
            assert_eq!(cpu.test.correct, device.test.correct);
        }
    }
}

#[test]
fn shared_layers_have_the_same_bits_on_every_path_but_nccl_s_order() {
    let data = text();
    let by_path = |exchange| over(exchange, &tensor(&gpt()), &data, 2);
    let (host, device) = (by_path("host"), by_path("device"));
    assert_eq!((&host.losses, host.weights_hash), (&device.losses, device.weights_hash));
    if can_try("nccl", 2) {
        let (scheduled, nccl) = (by_path("scheduled"), by_path("nccl"));
        assert_eq!((&host.losses, host.weights_hash), (&scheduled.losses, scheduled.weights_hash));
        assert_near(&host, &nccl, 1e-5);
    }
}

/// A norm counts what every rank of the tensor axis has once, and what they share wholly.
#[test]
fn shared_layers_are_clipped_scaled_sharded_and_staged_as_on_the_cpu() {
    let data = text();
    let clipped = gpt().with(|c| {
        c.optimiser.clip_norm = 0.05;
        c.training.batch = 2;
        c.training.max_steps = 2;
    });
    let amp = clipped.clone().with(|c| {
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 512.0;
    });
    for (config, strategy, sharding, within) in [
        (&clipped, "tensor", StageSharing::Ddp, 5e-5),
        (&clipped, "zero2", StageSharing::Ddp, 5e-5),
        (&amp, "tensor", StageSharing::Zero3, 2e-2),
        (&clipped, "pipeline", StageSharing::Zero1, 5e-5),
    ] {
        let mut config = config.clone().with(|c| c.strategy = strategy.into());
        config.parallel.tensor = 2;
        config.parallel.sharding = sharding;
        if strategy == "pipeline" {
            (config.training.accumulate, config.parallel.stages) = (2, 2);
        }
        let cpu = run(&config, &data, 4, false).remove(0);
        assert_near(&cpu, &over("device", &config, &data, 4), within * tolerance_factor());
    }
}

/// A checkpoint of ranks that share layers is continued by ranks that do not, and the other way round.
#[test]
fn shared_layers_are_saved_whole() {
    let data = text();
    let folder = std::env::temp_dir().join(format!("allfold-cuda-tensor-{}", std::process::id()));
    let kept = |strategy: &str| {
        gpt().with(|c| {
            c.strategy = strategy.into();
            c.checkpoint.dir = folder.to_string_lossy().into_owned();
            c.checkpoint.every = 2;
        })
    };
    let whole = run(&gpt().with(|c| c.strategy = "single".into()), &data, 1, false).remove(0);
    for (first, ranks, then, of) in [("tensor", 2, "single", 1), ("single", 1, "tensor", 2)] {
        over("device", &kept(first).with(|c| c.training.max_steps = 2), &data, ranks);
        let rest = over("device", &kept(then).with(|c| c.checkpoint.resume = true), &data, of);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_near(&whole, &rest, 5e-5 * tolerance_factor());
    }
}
