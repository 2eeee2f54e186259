//! ZeRO on devices: the bits of `ddp`, the losses of the CPU, a part of the memory on each rank, and checkpoints that any strategy
//! continues. On shims that detect races, over every path of the exchange.

use crate::ways::by;
use crate::{
    agrees, assert_near, can_try, cnn, pictures, placed, run as run_on, sentences, small, tolerance_factor,
};
use allfold_collectives::World;
use allfold_cuda::CudaMachine;
use allfold_trainer::config::AutocastType;
use allfold_trainer::cuda::Replica;
use allfold_trainer::engine::StepInput;
use allfold_trainer::{Config, Dataset, Error, Model, SampleForm, TrainResult, models, optim, train_with};
use std::sync::Arc;

const ZERO: [&str; 3] = ["zero1", "zero2", "zero3"];

fn zero(strategy: &str, config: &Config) -> Config {
    config.clone().with(|c| c.strategy = strategy.into())
}

/// Trains on a machine of devices. All ranks end with the same weights.
pub fn run(
    config: &Config,
    (train, test): &(Dataset, Dataset),
    ranks: u32,
    machine: &Arc<dyn CudaMachine>,
) -> TrainResult {
    let config = config.clone().with(|c| c.device = "cuda".into());
    let body = |comm: allfold_collectives::Communicator| {
        train_with(&config, train, test, &comm, Some(machine.clone()), &mut ())
    };
    let ran = World::threads(ranks).run(body).unwrap();
    assert!(ran.iter().all(|rank| rank.weights_hash == ran[0].weights_hash));
    ran.into_iter().next().unwrap()
}

fn gpt() -> Config {
    Config::default().with(|c| {
        c.model.name = "gpt".into();
        c.model.layers = 2;
        c.model.width = 64;
        c.model.heads = 2;
        c.model.dropout = 0.2;
        c.training.batch = 2;
        c.training.epochs = 2;
        c.optimiser.name = "adamw".into();
        c.optimiser.lr = 3e-3;
    })
}

/// Where no norm over all parameters is needed, every element is updated alike: the weights have the bits of `ddp`. A step is launched,
/// captured and replayed over NCCL, and launched on the other paths.
#[test]
fn sharded_training_has_the_bits_of_ddp_on_every_path() {
    let (digits, text) = (pictures(), (sentences(8, 9, 11), sentences(3, 9, 11)));
    let amp = small().with(|c| {
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 512.0;
    });
    let mut kept = small();
    kept.parallel.reshard_after_forward = false;
    let sync = cnn().with(|c| c.model.sync_batch_norm = true);
    let every = &["host", "device", "scheduled", "nccl"][..];
    let cases = [
        (small(), &digits, every),
        (kept, &digits, &["device", "nccl"]),
        (amp, &digits, &["device", "nccl"]),
        (small().with(|c| c.training.accumulate = 2), &digits, &["nccl"]),
        (
            small().with(|c| {
                c.model.frozen = vec!["fc1".into()];
                c.training.accumulate = 2;
            }),
            &digits,
            &["nccl"],
        ),
        (sync, &digits, &["nccl"]),
        (gpt(), &text, &["device", "nccl"]),
        (
            gpt().with(|c| {
                c.training.accumulate = 2;
                c.training.batch = 4;
                c.precision.amp = AutocastType::Bf16;
            }),
            &text,
            &["nccl"],
        ),
    ];
    for (case, (config, data, paths)) in cases.iter().enumerate() {
        for exchange in paths.iter().copied().filter(|exchange| can_try(exchange, 2)) {
            // NCCL needs a GPU for each rank; the other paths are tried on one.
            let machine = placed(if ["nccl", "scheduled"].contains(&exchange) { 2 } else { 1 });
            let ddp = run(&by(exchange, config), data, 2, &machine);
            for strategy in ZERO {
                let ran = run(&zero(strategy, &by(exchange, config)), data, 2, &machine);
                match config.training.accumulate > 1 && strategy != "zero1" {
                    // Each micro-batch's gradients are summed over ranks before they are added up.
                    true => assert_near(&ddp, &ran, 2e-2),
                    // Two addends have one sum, also over NCCL.
                    false => {
                        let what = format!("case {case}: {strategy} over {exchange}");
                        let bits = (ddp.losses.clone(), ddp.weights_hash);
                        assert_eq!((ran.losses, ran.weights_hash), bits, "{what}");
                    }
                }
            }
        }
    }
}

/// Norms over shards, a common decision about gradients that are not finite, and parts that do not divide evenly.
#[test]
fn sharded_training_clips_and_skips_as_the_cpu() {
    let data = pictures();
    let some = [
        (
            small().with(|c| {
                c.optimiser.name = "adamw".into();
                c.optimiser.lr = 0.01;
                c.optimiser.clip_norm = 0.5;
            }),
            2,
            1e-5,
        ),
        (
            small().with(|c| {
                c.optimiser.momentum = 0.0;
                c.optimiser.clip_norm = 0.1;
                c.precision.loss_scale = 1024.0;
            }),
            3,
            1e-5,
        ),
        // Norms of whole parameters, of which ranks have parts.
        (
            small().with(|c| {
                c.optimiser.name = "lars".into();
                c.optimiser.lr = 0.5;
            }),
            3,
            1e-5,
        ),
        // The scale is halved until gradients are finite.
        (
            small().with(|c| {
                c.precision.amp = AutocastType::F16;
                c.precision.loss_scale = 1e6;
            }),
            2,
            2e-2,
        ),
    ];
    for (config, ranks, within) in some {
        for strategy in ZERO {
            agrees(&zero(strategy, &config), &data, ranks, within);
        }
    }
}

/// Two copies, each sharded over two ranks: sums over both groups, and norms in which each part counts once.
#[test]
fn copies_that_are_sharded_over_pairs_train_as_whole_ones() {
    let data = pictures();
    let clipped = small().with(|c| {
        c.optimiser.name = "adamw".into();
        c.optimiser.lr = 0.01;
        c.optimiser.clip_norm = 0.5;
        c.training.batch = 2;
    });
    // The scale is halved until gradients are finite.
    let scaled = small().with(|c| {
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = 1e6;
        c.training.accumulate = 2;
        c.optimiser.clip_norm = 0.5;
        c.training.batch = 2;
    });
    let on = |strategy: &str, exchange: &str, config: &Config, shard: usize| {
        let mut config = zero(strategy, config).with(|c| c.set("exchange", exchange).unwrap());
        config.parallel.shard = shard;
        run(&config, &data, 4, &placed(if exchange == "nccl" { 4 } else { 1 }))
    };
    assert_near(
        &run_on(&clipped, &data, 4, false).remove(0),
        &on("zero3", "device", &clipped, 2),
        1e-5 * tolerance_factor(),
    );
    for (config, within) in [(clipped, 1e-5), (scaled, 2e-2)] {
        let whole = on("ddp", "device", &config, 0);
        for (strategy, exchange) in
            [("zero1", "device"), ("zero2", "nccl"), ("zero3", "nccl"), ("zero3", "host")]
        {
            if can_try(exchange, 4) {
                assert_near(&whole, &on(strategy, exchange, &config, 2), within * tolerance_factor());
            }
        }
    }
}

/// A run begun by one strategy is continued by another, on the devices and on the CPU.
#[test]
fn a_checkpoint_of_one_strategy_is_continued_by_any_other() {
    let data = pictures();
    for (name, first, second) in [("a", "ddp", "zero3"), ("b", "zero3", "zero1"), ("c", "zero2", "ddp")] {
        let folder = std::env::temp_dir().join(format!("allfold-cuda-zero-{name}-{}", std::process::id()));
        let config = small().with(|c| {
            c.optimiser.name = "adam".into();
            c.optimiser.lr = 0.01;
            c.checkpoint.dir = folder.to_string_lossy().into_owned();
            c.checkpoint.every = 3;
            c.checkpoint.sharded = name != "a";
        });
        let whole = run_on(&config, &data, 2, true).remove(0);
        std::fs::remove_dir_all(&folder).unwrap();
        run_on(&zero(first, &config).with(|c| c.training.max_steps = 3), &data, 2, true);
        let rest = zero(second, &config).with(|c| c.checkpoint.resume = true);
        let rest = run_on(&rest, &data, 2, true).remove(0);
        assert_eq!((whole.losses, whole.weights_hash), (rest.losses, rest.weights_hash), "{first}, {second}");
        std::fs::remove_dir_all(&folder).unwrap();
        run_on(&zero(first, &config).with(|c| c.training.max_steps = 3), &data, 2, true);
        let cpu =
            run_on(&zero(second, &config).with(|c| c.checkpoint.resume = true), &data, 2, false).remove(0);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_near(&run_on(&config, &data, 2, false).remove(0), &cpu, 1e-5 * tolerance_factor());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// Bytes of parameters, gradients and optimiser state of each rank between two steps.
#[test]
fn each_rank_keeps_its_part_of_the_memory() {
    let config = small().with(|c| {
        c.optimiser.name = "adam".into();
        c.model.name = "mlp".into();
        c.model.hidden = vec![256, 256];
    });
    let held = |strategy: &str| {
        let (config, machine) = (zero(strategy, &config), placed(4));
        let ran = World::threads(4).run(|comm| {
            let on = (machine.clone(), comm.rank().index() % machine.devices());
            let mut replica = Replica::new(&config, SampleForm::new((1, 8, 8), 10), &comm, on)?;
            let network = models::build::<f32>(&config, SampleForm::new((1, 8, 8), 10))?;
            let mut optimiser = optim::build(&config, network.params())?;
            let start = Model::new(network, 1)?;
            replica.upload(&start.params, &start.buffers, &mut *optimiser)?;
            let batch = allfold_trainer::Batch { x: vec![0.5f32; 4 * 64], labels: vec![1; 4] };
            for _ in 0..3 {
                replica.stage(&batch)?;
                let samples = replica.start(StepInput { lr: 0.1, ..StepInput::default() }, 16, false)?;
                replica.finish(samples)?;
            }
            let memory = replica.memory();
            Ok::<_, Error>([memory.params, memory.gradients, memory.optimiser])
        });
        ran.unwrap().remove(0)
    };
    let whole = held("ddp");
    println!("{:<8} {:>10} {:>10} {:>10}", "", "params", "gradients", "state");
    for (strategy, parts) in
        [("ddp", [1, 1, 1]), ("zero1", [1, 1, 4]), ("zero2", [1, 4, 4]), ("zero3", [4, 4, 4])]
    {
        let bytes = held(strategy);
        println!("{strategy:<8} {:>10} {:>10} {:>10}", bytes[0], bytes[1], bytes[2]);
        for at in 0..3 {
            let (got, want) = (bytes[at] as f64, whole[at] as f64 / f64::from(parts[at]));
            // Parts are padded to 256 bytes.
            assert!((got / want - 1.0).abs() < 0.02, "{strategy}: {bytes:?}, not {want} of {whole:?}");
        }
    }
}
