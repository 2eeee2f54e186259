//! Pipelines on devices: losses and weights of the CPU by every schedule and over every path, with ZeRO in each stage, tied parameters on
//! two stages, running statistics, and checkpoints. On shims that detect races.

use crate::ways::by;
use crate::{assert_near, can_try, cnn, pictures, placed, run as run_on, sentences, small, tolerance_factor};
use allfold_collectives::{Communicator, World};
use allfold_cuda::CudaMachine;
use allfold_trainer::config::{AutocastType, ScheduleName, StageSharing};
use allfold_trainer::{Config, Dataset, TrainResult, train_with};
use std::sync::Arc;

fn pipeline(schedule: ScheduleName, stages: usize, config: &Config) -> Config {
    let mut config = config.clone().with(|c| c.strategy = "pipeline".into());
    (config.parallel.schedule, config.parallel.stages) = (schedule, stages);
    if schedule == ScheduleName::Interleaved {
        config.parallel.chunks = 2;
    }
    config
}

fn run(
    config: &Config,
    (train, test): &(Dataset, Dataset),
    ranks: u32,
    machine: &Arc<dyn CudaMachine>,
) -> TrainResult {
    let body = |comm: Communicator| train_with(config, train, test, &comm, Some(machine.clone()), &mut ());
    let ran = World::threads(ranks).run(body).unwrap();
    assert!(
        ran.iter().all(|rank| (rank.weights_hash, &rank.losses) == (ran[0].weights_hash, &ran[0].losses))
    );
    ran.into_iter().next().unwrap()
}

/// A GPT whose head shares the embedding's weight: the first and the last stage hold a copy.
fn gpt() -> Config {
    Config::default().with(|c| {
        c.model.name = "gpt".into();
        c.model.layers = 4;
        c.model.width = 32;
        c.model.heads = 2;
        c.model.dropout = 0.2;
        c.training.batch = 4;
        c.training.accumulate = 4;
        c.training.epochs = 1;
        c.optimiser.name = "adamw".into();
        c.optimiser.lr = 3e-3;
    })
}

fn text() -> (Dataset, Dataset) {
    (sentences(16, 9, 11), sentences(3, 9, 11))
}

const SCHEDULES: [ScheduleName; 5] = [
    ScheduleName::Gpipe,
    ScheduleName::OneFOneB,
    ScheduleName::Interleaved,
    ScheduleName::ZbH1,
    ScheduleName::ZbV,
];

#[test]
fn every_schedule_trains_as_one_rank_of_the_cpu() {
    let data = text();
    let cpu = run_on(&gpt().with(|c| c.strategy = "single".into()), &data, 1, false).remove(0);
    for schedule in SCHEDULES {
        let config = pipeline(schedule, 2, &gpt());
        assert_near(&cpu, &run(&by("device", &config), &data, 2, &placed(1)), 5e-5 * tolerance_factor());
    }
}

#[test]
fn a_pipeline_gives_the_same_bits_over_devices_and_host_and_trains_over_nccl() {
    let (data, machine) = (text(), placed(4));
    let config = pipeline(ScheduleName::OneFOneB, 4, &gpt());
    let by_path = |exchange| run(&by(exchange, &config), &data, 4, &machine);
    let (host, device) = (by_path("host"), by_path("device"));
    assert_eq!((&host.losses, host.weights_hash), (&device.losses, device.weights_hash));
    if can_try("nccl", 4) {
        let (scheduled, nccl) = (by_path("scheduled"), by_path("nccl"));
        assert_eq!((&host.losses, host.weights_hash), (&scheduled.losses, scheduled.weights_hash));
        assert_near(&host, &nccl, 1e-5);
    }
}

/// Norms and the flag of gradients that are not finite are those of all stages; stages of several ranks shard what they keep.
#[test]
fn pipelines_of_several_ranks_a_stage_clip_scale_and_shard_as_the_cpu() {
    let data = text();
    let amp = gpt().with(|c| {
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 512.0;
    });
    let clipped = gpt().with(|c| c.optimiser.clip_norm = 0.05);
    for (config, sharding, within) in [
        (&clipped, StageSharing::Ddp, 5e-5),
        (&clipped, StageSharing::Zero2, 5e-5),
        (&amp, StageSharing::Zero1, 2e-2),
        (&amp, StageSharing::Zero3, 2e-2),
    ] {
        let config = config.clone().with(|c| {
            c.training.batch = 2;
            c.training.accumulate = 2;
        });
        let mut config = pipeline(ScheduleName::OneFOneB, 2, &config);
        config.parallel.sharding = sharding;
        let cpu = run_on(&config, &data, 4, false).remove(0);
        assert_near(&cpu, &run(&by("device", &config), &data, 4, &placed(2)), within * tolerance_factor());
    }
}

/// Running statistics are those of the stage that has the layer, in evaluations and in checkpoints.
#[test]
fn a_pipeline_with_batch_norms_is_scored_and_continued_as_on_the_cpu() {
    let data = pictures();
    let folder = std::env::temp_dir().join(format!("allfold-cuda-pipeline-{}", std::process::id()));
    let config = pipeline(
        ScheduleName::OneFOneB,
        2,
        &cnn().with(|c| {
            c.training.accumulate = 2;
            c.training.epochs = 2;
        }),
    );
    let whole = run(&config, &data, 2, &placed(2));
    assert_near(&run_on(&config, &data, 2, false).remove(0), &whole, 1e-4 * tolerance_factor());
    let kept = config.clone().with(|c| {
        c.checkpoint.dir = folder.to_string_lossy().into_owned();
        c.checkpoint.every = 3;
        c.checkpoint.sharded = true;
    });
    run(&kept.clone().with(|c| c.training.max_steps = 3), &data, 2, &placed(2));
    let rest = run(&kept.with(|c| c.checkpoint.resume = true), &data, 2, &placed(2));
    std::fs::remove_dir_all(&folder).unwrap();
    assert_near(&whole, &rest, 1e-5 * tolerance_factor());
    // A GPU's fastest convolutions add up in any order.
    if std::env::var_os("ALLFOLD_TEST_GPU").is_none() {
        assert_eq!((rest.losses, rest.weights_hash), (whole.losses, whole.weights_hash));
    }
}

#[test]
fn a_single_layer_of_a_stage_may_be_named() {
    let data = pictures();
    let mut config = pipeline(
        ScheduleName::Gpipe,
        2,
        &small().with(|c| {
            c.model.hidden = vec![16, 16];
            c.training.accumulate = 2;
        }),
    );
    config.parallel.split = vec!["fc2".into()];
    let cpu = run_on(&config, &data, 2, false).remove(0);
    assert_near(&cpu, &run(&config, &data, 2, &placed(1)), 1e-5 * tolerance_factor());
}

/// Stages that send round a ring, and both ways, do not wait for each other in a circle, on the host or on their streams.
#[test]
fn rings_of_four_stages_wait_in_no_circle() {
    let data = text();
    for schedule in [ScheduleName::Interleaved, ScheduleName::ZbV] {
        let config = gpt().with(|c| {
            c.model.layers = 8;
            c.training.max_steps = 1;
            c.training.batch = 8;
            c.training.accumulate = 8;
        });
        let config = pipeline(schedule, 4, &config);
        let device = run(&by("device", &config), &data, 4, &placed(4));
        if can_try("nccl", 4) {
            assert_near(&device, &run(&by("nccl", &config), &data, 4, &placed(4)), 1e-5);
        }
    }
}
