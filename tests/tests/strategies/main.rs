//! Every strategy of the engine compared with one rank on the whole batch, on every backend, and what strategies refuse.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod bases;
mod draws;
mod faults;
mod memory;
mod observed;
mod on_gpus;
mod optimisers;
mod parameter_server;
mod predicted;
mod recomputed;
mod refused;
mod resumed;
mod sequence;
mod shares;

pub(crate) use bases::{digits, gpt, llama, mixture};

use allfold_collectives::World;
use allfold_collectives::world::WorldKind;
use allfold_tests::training::{bits, run, switch};
use allfold_trainer::config::ElementType;
use allfold_trainer::{Config, Model, checkpoint, data, models, weights};

/// Samples of a step, over all ranks.
const SAMPLES: usize = 24;

/// A strategy with its configuration keys, and the numbers of ranks that it takes.
struct Row {
    name: &'static str,
    strategy: &'static str,
    keys: &'static [(&'static str, &'static str)],
    /// How many of a given number of ranks have samples of their own; `None` if the strategy does not take that number.
    data: fn(u32) -> Option<u32>,
}

impl Row {
    /// Whether the strategy takes a model. Only sequences have positions that ranks can share, and only mixtures have experts, which
    /// take whole sequences.
    fn takes(&self, base: &Config) -> bool {
        let mixture = base.model.experts > 0;
        match self.strategy == "context" || self.name.contains("sequence") {
            true => base.model.name == "gpt" && !mixture,
            false => mixture || !self.name.contains("expert"),
        }
    }

    /// The gpt that the row trains.
    fn gpt(&self) -> Config {
        let plain = gpt();
        if self.takes(&plain) { plain } else { mixture() }
    }
}

fn all(ranks: u32) -> Option<u32> {
    Some(ranks)
}

fn pairs(ranks: u32) -> Option<u32> {
    ranks.is_multiple_of(2).then_some(ranks)
}

fn stages(_: u32) -> Option<u32> {
    Some(1)
}

fn two_stages(ranks: u32) -> Option<u32> {
    ranks.is_multiple_of(2).then_some(ranks / 2)
}

/// The number of workers with one server, if it divides the samples.
fn workers_of_one(ranks: u32) -> Option<u32> {
    let workers = ranks.checked_sub(1).filter(|workers| *workers > 0)?;
    (SAMPLES as u32).is_multiple_of(workers).then_some(workers)
}

fn workers_of_two(ranks: u32) -> Option<u32> {
    workers_of_one(ranks.checked_sub(1)?)
}

fn fours(ranks: u32) -> Option<u32> {
    ranks.is_multiple_of(4).then_some(ranks / 4)
}

/// Positions of the gpt's samples: 8, which 1, 2 and 4 ranks can share; in a long run 24, which 3 and 6 can share as well.
fn positions() -> usize {
    if is_long() { 24 } else { 8 }
}

/// Twice the ranks of a context axis divides the positions.
fn shared_positions(ranks: u32) -> Option<u32> {
    positions().is_multiple_of(2 * ranks as usize).then_some(1)
}

/// The ranks of a tensor axis divide the heads.
fn heads(ranks: u32) -> Option<u32> {
    [1, 2, 4].contains(&ranks).then_some(1)
}

/// The ranks of an expert axis divide the experts.
fn experts(ranks: u32) -> Option<u32> {
    8u32.is_multiple_of(ranks).then_some(ranks)
}

fn stages_of_pairs(ranks: u32) -> Option<u32> {
    ranks.is_multiple_of(4).then_some(ranks / 2)
}

/// Interleaved stages divide the 8 micro-batches.
fn divisor(ranks: u32) -> Option<u32> {
    8u32.is_multiple_of(ranks).then_some(1)
}

const ROWS: [Row; 32] = [
    Row { name: "ddp", strategy: "ddp", keys: &[], data: all },
    Row { name: "data_parallel", strategy: "data_parallel", keys: &[], data: all },
    Row { name: "parameter_server", strategy: "parameter_server", keys: &[], data: workers_of_one },
    Row {
        name: "2 servers, 2 micro",
        strategy: "parameter_server",
        keys: &[("parallel.servers", "2"), ("training.accumulate", "2")],
        data: workers_of_two,
    },
    Row { name: "zero1", strategy: "zero1", keys: &[], data: all },
    Row { name: "zero1, 2 micro", strategy: "zero1", keys: &[("training.accumulate", "2")], data: all },
    Row { name: "zero2", strategy: "zero2", keys: &[], data: all },
    Row { name: "zero2, 2 micro", strategy: "zero2", keys: &[("training.accumulate", "2")], data: all },
    Row { name: "zero3", strategy: "zero3", keys: &[], data: all },
    Row {
        name: "zero3, kept",
        strategy: "zero3",
        keys: &[("parallel.reshard_after_forward", "false"), ("training.accumulate", "2")],
        data: all,
    },
    Row { name: "zero1, by pairs", strategy: "zero1", keys: &[("parallel.shard", "2")], data: pairs },
    Row {
        name: "zero3, by pairs",
        strategy: "zero3",
        keys: &[("parallel.shard", "2"), ("training.accumulate", "2")],
        data: pairs,
    },
    Row {
        name: "gpipe",
        strategy: "pipeline",
        keys: &[("parallel.schedule", "gpipe"), ("training.accumulate", "4")],
        data: stages,
    },
    Row { name: "1f1b", strategy: "pipeline", keys: &[("training.accumulate", "4")], data: stages },
    Row {
        name: "zb_h1",
        strategy: "pipeline",
        keys: &[("parallel.schedule", "zb_h1"), ("training.accumulate", "5")],
        data: stages,
    },
    Row {
        name: "interleaved",
        strategy: "pipeline",
        keys: &[("parallel.schedule", "interleaved"), ("training.accumulate", "8")],
        data: divisor,
    },
    Row {
        name: "zb_v",
        strategy: "pipeline",
        keys: &[("parallel.schedule", "zb_v"), ("training.accumulate", "6")],
        data: stages,
    },
    Row {
        name: "1f1b x zero1",
        strategy: "pipeline",
        keys: &[("parallel.stages", "2"), ("parallel.sharding", "zero1"), ("training.accumulate", "3")],
        data: two_stages,
    },
    Row {
        name: "zb_h1 x zero3",
        strategy: "pipeline",
        keys: &[
            ("parallel.stages", "2"),
            ("parallel.sharding", "zero3"),
            ("parallel.schedule", "zb_h1"),
            ("training.accumulate", "3"),
        ],
        data: two_stages,
    },
    Row {
        name: "context",
        strategy: "context",
        keys: &[("training.accumulate", "2")],
        data: shared_positions,
    },
    Row {
        name: "context x zero3",
        strategy: "context",
        keys: &[("parallel.context", "2"), ("parallel.sharding", "zero3")],
        data: two_stages,
    },
    Row { name: "expert", strategy: "expert", keys: &[("training.accumulate", "2")], data: experts },
    Row {
        name: "expert by pairs",
        strategy: "expert",
        keys: &[("parallel.expert", "2"), ("parallel.sharding", "zero1")],
        data: pairs,
    },
    Row { name: "zero2 x expert", strategy: "zero2", keys: &[("parallel.expert", "2")], data: pairs },
    Row {
        name: "zero3 x expert",
        strategy: "zero3",
        keys: &[("parallel.expert", "2"), ("training.accumulate", "2")],
        data: pairs,
    },
    Row {
        name: "zb_h1 x expert",
        strategy: "pipeline",
        keys: &[
            ("parallel.stages", "2"),
            ("parallel.expert", "2"),
            ("parallel.schedule", "zb_h1"),
            ("training.accumulate", "3"),
        ],
        data: stages_of_pairs,
    },
    Row { name: "tensor", strategy: "tensor", keys: &[("training.accumulate", "2")], data: heads },
    Row {
        name: "tensor x zero3",
        strategy: "tensor",
        keys: &[("parallel.tensor", "2"), ("parallel.sharding", "zero3")],
        data: two_stages,
    },
    Row {
        name: "1f1b x zero1 x tensor",
        strategy: "pipeline",
        keys: &[
            ("parallel.tensor", "2"),
            ("parallel.stages", "2"),
            ("parallel.sharding", "zero1"),
            ("training.accumulate", "3"),
        ],
        data: fours,
    },
    Row {
        name: "sequence",
        strategy: "tensor",
        keys: &[("parallel.sequence_parallel", "true"), ("training.accumulate", "2")],
        data: heads,
    },
    Row {
        name: "sequence x zero3",
        strategy: "zero3",
        keys: &[("parallel.sequence_parallel", "true"), ("parallel.tensor", "2")],
        data: two_stages,
    },
    Row {
        name: "zb_h1 x sequence",
        strategy: "pipeline",
        keys: &[
            ("parallel.sequence_parallel", "true"),
            ("parallel.tensor", "2"),
            ("parallel.stages", "2"),
            ("parallel.schedule", "zb_h1"),
            ("training.accumulate", "3"),
        ],
        data: fours,
    },
];

/// Whether `STRATEGY_RANKS` is `all`, as in scripts/long.sh.
fn is_long() -> bool {
    std::env::var("STRATEGY_RANKS").is_ok_and(|which| which == "all")
}

/// `few` numbers of ranks, or `all` of them in a long run.
pub(crate) fn counts<'a>(few: &'a [u32], all: &'a [u32]) -> &'a [u32] {
    if is_long() { all } else { few }
}

/// The row's configuration if `data` ranks have samples of their own.
pub(crate) fn on(row: &Row, base: &Config, data: u32) -> Config {
    let mut config = base.clone().with(|c| {
        c.strategy = row.strategy.into();
        c.training.batch = SAMPLES / data as usize;
    });
    row.keys.iter().for_each(|(key, value)| config.set(key, value).unwrap());
    config
}

/// The weights after the last step, by parameter.
pub(crate) fn trained<K: WorldKind>(world: &World<K>, config: &Config) -> Vec<Vec<f64>> {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint_dir = directory.path().display().to_string();
    let config = config.clone().with(|c| {
        c.checkpoint.dir = checkpoint_dir;
        c.checkpoint.every = config.training.max_steps;
    });
    run(world, &config);
    let (train, _) = data::load(&config).unwrap();
    let network = models::build(&config, train.form()).unwrap();
    let mut model = Model::<f64>::new(network, 0).unwrap();
    weights::load(&checkpoint::newest(directory.path()).unwrap().unwrap(), &mut model).unwrap();
    (0..model.network().params().len()).map(|param| model.param(param).to_vec()).collect()
}

/// The largest distance of two runs' weights, relative to the largest value of each tensor.
pub(crate) fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let of = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        let largest = a.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0f64, f64::max);
        if largest == 0.0 { worst } else { worst / largest }
    };
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(of).fold(0.0, f64::max)
}

/// A configuration with the weights that one rank has after its run.
pub(crate) struct Alone {
    base: Config,
    weights: Vec<Vec<f64>>,
}

impl Alone {
    pub(crate) fn new(base: Config) -> Alone {
        let whole = base.clone().with(|c| {
            c.strategy = "single".into();
            c.training.batch = SAMPLES;
        });
        Alone { weights: trained(&World::threads(1), &whole), base }
    }

    /// The rows whose strategy takes the model.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| row.takes(&self.base))
    }

    /// Trains a row on each of these numbers of ranks, prints the distances, and fails if one is not below `limit`.
    pub(crate) fn hold(&self, row: &Row, ranks: &[u32], limit: f64) {
        let cell = |&ranks: &u32| {
            let data = (row.data)(ranks)?;
            Some(distance(&self.weights, &trained(&World::threads(ranks), &on(row, &self.base, data))))
        };
        let cells: Vec<Option<f64>> = ranks.iter().map(cell).collect();
        let text: Vec<String> =
            cells.iter().map(|cell| cell.map_or("     -".into(), |far| format!("{far:6.0e}"))).collect();
        println!("| {:<16} | {} |", row.name, text.join(" | "));
        assert!(cells.iter().flatten().all(|far| *far < limit), "{}: {cells:?}", row.name);
    }
}

#[test]
fn ten_steps_of_every_strategy_equal_one_rank_s() {
    let all = [1, 2, 3, 4, 6, 8];
    let bases = [("mlp", digits()), ("gpt, tied", gpt()), ("gpt, experts", mixture()), ("llama", llama())];
    for (model, base) in bases {
        let ranks = match model {
            "mlp" => &all[..],
            "llama" => counts(&[2, 4], &all),
            _ => counts(&[2, 3, 8], &all),
        };
        println!("\n{model}: distance of the weights from one rank's, by ranks {ranks:?}");
        let alone = Alone::new(base);
        for row in alone.rows() {
            // The GPT has twelve parts that a pipeline can separate.
            let two_chunks = ["interleaved", "zb_v"].contains(&row.name);
            let most = if two_chunks && model != "mlp" { 6 } else { 8 };
            let ranks: Vec<u32> = ranks.iter().copied().filter(|ranks| *ranks <= most).collect();
            alone.hold(row, &ranks, 1e-12);
        }
    }
}

/// Runs with clipping, a loss scale and weight decay.
#[test]
fn norms_and_scales_are_those_of_all_ranks() {
    let base = gpt().with(|c| {
        c.optimiser.name = "sgd".into();
        c.optimiser.clip_norm = 0.5;
        c.precision.loss_scale = 1024.0;
        c.optimiser.weight_decay = 0.01;
        c.precision.scale_interval = 3;
        c.training.max_steps = 5;
    });
    let experts = mixture().with(|c| {
        c.optimiser.clip_norm = 0.5;
        c.precision.loss_scale = 1024.0;
        c.optimiser.weight_decay = 0.01;
        c.training.max_steps = 5;
    });
    for alone in [base, experts].map(Alone::new) {
        for row in alone.rows() {
            alone.hold(row, counts(&[4], &[2, 4]), 1e-12);
        }
    }
}

/// Batch norms normalise over the samples of all ranks; in a pipeline over those of each micro-batch, as on one rank. Micro-batches of
/// several ranks have other samples than those of one rank, and are left out.
#[test]
fn synchronised_batch_norms_and_frozen_layers_are_the_same_in_parts() {
    let base = digits().with(|c| {
        c.model.name = "cnn".into();
        c.model.channels = vec![4, 6];
        c.model.batch_norm = true;
        c.model.sync_batch_norm = true;
        c.model.frozen = vec!["conv1".into()];
        c.optimiser.weight_decay = 0.1;
        c.model.hidden = Vec::new();
    });
    let rows = ROWS.iter().filter(|row| row.takes(&base)).flat_map(|row| [2, 3, 4].map(|ranks| (row, ranks)));
    for (row, ranks) in rows {
        let Some(data) = (row.data)(ranks) else { continue };
        let config = on(row, &base, data);
        if data > 1 && config.training.accumulate > 1 {
            continue;
        }
        let whole = base.clone().with(|c| {
            c.strategy = "single".into();
            c.training.batch = SAMPLES;
            c.training.accumulate = config.training.accumulate;
        });
        let far = distance(&trained(&World::threads(1), &whole), &trained(&World::threads(ranks), &config));
        assert!(far < 1e-12, "{}, {ranks} ranks: {far:e}", row.name);
    }
}

#[test]
fn the_same_bits_on_every_backend() {
    for row in &ROWS {
        for base in [digits(), gpt(), mixture()].map(|base| base.with(|c| c.training.max_steps = 3)) {
            // The other rows treat a mixture as they treat other layers.
            if !row.takes(&base) || base.model.experts > 0 && !row.name.contains("expert") {
                continue;
            }
            let config = on(row, &base, (row.data)(4).unwrap());
            let want = bits(&run(&World::threads(4), &config));
            let sim = bits(&run(&World::sim(&switch(4)), &config));
            assert_eq!(sim, want, "{} on virtual time", row.name);
            assert_eq!(bits(&run(&World::threads(4).messages(), &config)), want, "{} by messages", row.name);
            assert_eq!(bits(&run(&World::tcp(4), &config)), want, "{} over TCP", row.name);
            assert_eq!(bits(&run(&World::shm(4), &config)), want, "{} in shared memory", row.name);
        }
    }
}

/// With plain sums per element, sharding changes no bit: the sums of gradients and the optimiser's steps are the same.
#[test]
fn zero_has_the_bits_of_ddp() {
    for ranks in [2, 3, 4] {
        for optimiser in ["sgd", "adam"] {
            let base = digits().with(|c| {
                c.optimiser.name = optimiser.into();
                c.optimiser.lr = 0.01;
                c.precision.dtype = ElementType::F32;
            });
            let of = |name: &str| {
                let row = ROWS.iter().find(|row| row.name == name).unwrap();
                run(&World::threads(ranks), &on(row, &base, ranks)).weights_hash
            };
            let ddp = of("ddp");
            for name in ["zero1", "zero2", "zero3"] {
                assert_eq!(of(name), ddp, "{name}, {ranks} ranks, {optimiser}");
            }
        }
    }
}
