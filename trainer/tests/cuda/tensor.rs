//! Tensor parallelism on devices: losses, scores and weights of the CPU, alone and with ZeRO and pipelines, with clipping, loss scales and
//! autocast, for classes and rows of a table that ranks do not divide evenly. On shims that detect races.

use crate::ways::by;
use crate::{agrees, assert_near, can_try, pictures, placed, room, run, sentences, small};
use allfold_collectives::{Communicator, World};
use allfold_trainer::config::StageSharing;
use allfold_trainer::{Config, Dataset, TrainResult, train_with};

fn tensor(config: &Config) -> Config {
    Config { strategy: "tensor".into(), ..config.clone() }
}

/// A GPT with 11 tokens, which 2 ranks share as 5 and 6.
fn gpt() -> Config {
    Config {
        model: "gpt".into(),
        layers: 2,
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
    let wide = Config { hidden: vec![9, 8], ..small() };
    for (config, data, ranks, within) in [
        (wide.clone(), &digits, 2, 1e-5),
        (Config { loss: "mse".into(), ..wide.clone() }, &digits, 3, 1e-5),
        (Config { optimiser: "lars".into(), lr: 0.5, ..wide.clone() }, &digits, 3, 1e-5),
        (Config { frozen: vec!["fc2".into()], ..wide }, &digits, 2, 1e-5),
        (Config { attention_dropout: 0.3, ..gpt() }, &text, 2, 5e-5),
        (Config { tied: false, accumulate: 2, ..gpt() }, &text, 2, 5e-5),
        (Config { amp: "bf16".into(), ..gpt() }, &text, 2, 3e-2),
    ] {
        let (cpu, device) = agrees(&tensor(&config), data, ranks, within);
        if config.amp.is_empty() {
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
    let clipped = Config { clip_norm: 0.05, batch: 2, max_steps: 2, ..gpt() };
    let amp = Config { amp: "f16".into(), loss_scale: 512.0, ..clipped.clone() };
    for (config, strategy, sharding, within) in [
        (&clipped, "tensor", StageSharing::Ddp, 5e-5),
        (&clipped, "zero2", StageSharing::Ddp, 5e-5),
        (&amp, "tensor", StageSharing::Zero3, 2e-2),
        (&clipped, "pipeline", StageSharing::Zero1, 5e-5),
    ] {
        let mut config = Config { strategy: strategy.into(), ..config.clone() };
        config.parallel.tensor = 2;
        config.parallel.sharding = sharding;
        if strategy == "pipeline" {
            (config.accumulate, config.parallel.stages) = (2, 2);
        }
        let cpu = run(&config, &data, 4, false).remove(0);
        assert_near(&cpu, &over("device", &config, &data, 4), within * room());
    }
}

/// A checkpoint of ranks that share layers is continued by ranks that do not, and the other way round.
#[test]
fn shared_layers_are_saved_whole() {
    let data = text();
    let folder = std::env::temp_dir().join(format!("allfold-cuda-tensor-{}", std::process::id()));
    let kept = |strategy: &str| Config {
        strategy: strategy.into(),
        checkpoint_dir: folder.to_string_lossy().into_owned(),
        checkpoint_every: 2,
        ..gpt()
    };
    let whole = run(&Config { strategy: "single".into(), ..gpt() }, &data, 1, false).remove(0);
    for (first, ranks, then, of) in [("tensor", 2, "single", 1), ("single", 1, "tensor", 2)] {
        over("device", &Config { max_steps: 2, ..kept(first) }, &data, ranks);
        let rest = over("device", &Config { resume: true, ..kept(then) }, &data, of);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_near(&whole, &rest, 5e-5 * room());
    }
}
