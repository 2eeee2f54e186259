#![allow(missing_docs, clippy::unwrap_used)]
//! The classes of memory that a rank reports, compared with what an allocator counts. Everything here is one test, because the allocator
//! counts for the whole process.

use allfold_collectives::{Communicator, World};
use allfold_trainer::engine::StepInput;
use allfold_trainer::{Batch, Config, MemoryUse, Model, RankTrainer, SampleForm, models};
use cap::Cap;
use std::alloc::System;
use std::sync::Barrier;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// A network with its samples: channels, height, width, and classes.
struct Case {
    name: &'static str,
    keys: &'static [(&'static str, &'static str)],
    shape: (usize, usize, usize),
    classes: usize,
    samples: usize,
    /// Elements of a sample that the stages of a pipeline send each other.
    boundary: usize,
}

/// In order of the memory that a step needs.
const CASES: [Case; 3] = [
    Case {
        name: "gpt",
        keys: &[
            ("model.name", "gpt"),
            ("model.layers", "4"),
            ("model.width", "64"),
            ("model.heads", "4"),
            ("optimiser.name", "adamw"),
        ],
        shape: (1, 1, 32),
        classes: 96,
        samples: 64,
        boundary: 64 * 32,
    },
    Case {
        name: "mlp",
        keys: &[("model.name", "mlp"), ("model.hidden", "[512, 512]"), ("optimiser.name", "adam")],
        shape: (1, 16, 16),
        classes: 10,
        samples: 8192,
        boundary: 512,
    },
    Case {
        name: "cnn",
        keys: &[("model.name", "cnn"), ("model.channels", "[16, 32]"), ("model.batch_norm", "true")],
        shape: (1, 28, 28),
        classes: 10,
        samples: 256,
        boundary: 16 * 28 * 28,
    },
];

impl Case {
    fn config(&self, strategy: &str) -> Config {
        let mut config = Config::default();
        self.keys.iter().for_each(|(key, value)| config.set(key, value).unwrap());
        config.with(|c| c.strategy = strategy.into())
    }

    /// Samples of a rank: values of pixels, or tokens.
    fn batch(&self, samples: usize) -> Batch<f32> {
        let (channels, height, width) = self.shape;
        let (inputs, tokens) = (channels * height * width, self.name == "gpt");
        let value = |at: usize| if tokens { (at * 7 % self.classes) as f32 } else { (at % 17) as f32 / 17.0 };
        let labels = samples * if tokens { inputs } else { 1 };
        Batch {
            x: (0..samples * inputs).map(value).collect(),
            labels: (0..labels).map(|at| (at % self.classes) as u32).collect(),
        }
    }
}

/// How far the sum of the classes may be from what the allocator counts.
const LIMIT: f64 = 0.02;

/// What each rank reports after some steps: between two steps, and at the peak of the last; and what the allocator counts: between two
/// steps, and the most ever if the last step has raised it.
struct Counted {
    ranks: Vec<(MemoryUse, MemoryUse)>,
    held: usize,
    peak: Option<usize>,
}

fn counted(case: &Case, strategy: &str, ranks: u32) -> Counted {
    let config = case.config(strategy);
    let together = Barrier::new(ranks as usize);
    let body = |comm: Communicator| {
        let build = || models::build::<f32>(&config, SampleForm::new(case.shape, case.classes)).unwrap();
        // Ranks on the data axis share the samples, of which the first rank of `data_parallel` has all at first.
        let leads = strategy == "data_parallel" && comm.rank().0 == 0;
        let shares = !leads && !["pipeline", "tensor"].contains(&strategy);
        let mut batch = case.batch(case.samples / if shares { ranks as usize } else { 1 });
        together.wait();
        let before = ALLOCATOR.allocated();
        together.wait();
        let mut rank = RankTrainer::new(&config, build(), &comm)?;
        rank.start(&mut Model::new(build(), 3)?)?;
        rank.observe(true);
        together.wait();
        let most = ALLOCATOR.max_allocated();
        together.wait();
        for step in 0..2 {
            let input = StepInput { lr: 1e-3, ..StepInput::default() };
            assert!(rank.step(&mut batch, input, None)?.loss.is_finite(), "step {step}");
        }
        together.wait();
        let (held, peak) = (ALLOCATOR.allocated() - before, ALLOCATOR.max_allocated());
        together.wait();
        let peak = (peak > most).then(|| peak - before);
        Ok::<_, allfold_trainer::Error>(((rank.memory(), rank.peak().unwrap()), (held, peak)))
    };
    let all = World::threads(ranks).run(body).unwrap();
    let (held, peak) = all[0].1;
    Counted { ranks: all.into_iter().map(|(reported, _)| reported).collect(), held, peak }
}

#[test]
fn an_allocator_counts_what_ranks_report() {
    let far = |counted: usize, reported: u64| counted as f64 / reported as f64 - 1.0;
    println!("| {:<5} | {:<14} | ranks | reported, KiB | counted, KiB | apart |", "model", "strategy");
    let print = |model: &str, what: &str, ranks: usize, reported: u64, counted: usize| {
        let apart = 100.0 * far(counted, reported);
        let (reported, counted) = (reported / 1024, counted / 1024);
        println!("| {model:<5} | {what:<14} | {ranks:>5} | {reported:>13} | {counted:>12} | {apart:>4.1}% |");
    };
    let mut wrong = Vec::new();
    // Products pack their operands into memory that each thread keeps: what the allocator counts beyond the classes.
    let mut packed = Vec::new();
    for case in &CASES {
        let Counted { ranks, peak, .. } = counted(case, "single", 1);
        let (reported, peak) = (ranks[0].1.total(), peak.unwrap());
        print(case.name, "single, peak", 1, reported, peak);
        wrong.extend((far(peak, reported).abs() > LIMIT).then(|| format!("{}, peak", case.name)));
        packed.push(peak.saturating_sub(reported as usize));
    }
    for (case, packing) in CASES.iter().zip(packed) {
        for strategy in ["ddp", "data_parallel", "zero1", "zero2", "zero3", "pipeline", "tensor"] {
            if strategy == "tensor" && case.name != "gpt" {
                continue;
            }
            let Counted { ranks, held, .. } = counted(case, strategy, 2);
            let held = held - packing * ranks.len();
            let reported: u64 = ranks.iter().map(|(between, _)| between.total()).sum();
            print(case.name, strategy, ranks.len(), reported, held);
            // A communicator keeps the buffers of messages for the next ones, in powers of two. Here there is one in each direction.
            let (channels, height, width) = case.shape;
            let elements = match strategy {
                "pipeline" => case.samples * case.boundary,
                "data_parallel" => case.samples / 2 * channels * height * width,
                _ => 0,
            };
            let message = (elements * size_of::<f32>()).next_power_of_two() as u64;
            let kept = (0..=2).map(|messages| reported + messages * message);
            let nearest = kept.map(|reported| far(held, reported).abs()).fold(f64::INFINITY, f64::min);
            wrong.extend((nearest > LIMIT).then(|| format!("{}, {strategy}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "more than 2 % apart: {}", wrong.join("; "));
}
