//! One training step of five models, timed as `benches/peers/torch_step.py` times PyTorch's: the same shapes, optimisers
//! and numbers of steps, the median of all steps. `benches/peers/run.sh` runs both, one after the other.
//!
//! ```text
//! cargo bench -p allfold-trainer --bench peer -- MODEL THREADS             one rank of so many threads
//! cargo bench -p allfold-trainer --bench peer -- MODEL 1 RANKS [STRATEGY]  one rank and RANKS of them, in turn: by ddp, or STRATEGY
//! allfold launch -n RANKS -- THIS_PROGRAM MODEL 1 RANKS [STRATEGY]         the same, a process for each rank
//! ```
//!
//! Each command prints a line of JSON. `of_product` is the step's rate as a share of that of a 512 x 512 x 512 product on one core,
//! measured in the same run: the rate that a step without any other work would have.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use allfold_collectives::{Communicator, World};
use allfold_kernels::nn::{Matrix, Store, ThreadPool, matmul};
use allfold_trainer::engine::StepInput;
use allfold_trainer::models::{Gpt, ResNet, gpt, mlp, resnet};
use allfold_trainer::{Batch, Config, Model, Network, RankTrainer, Result, optim};
use std::time::Instant;

/// A case to time: a network with its optimiser's keys, learning rate and samples, and (steps before, steps timed).
type Case = (fn() -> Network<f32>, Config, (usize, usize));

/// Side of the square product that stands for the machine's peak.
const SIDE: usize = 512;
/// Turns of one rank and of several.
const TURNS: usize = 3;

fn case(model: &str) -> Case {
    let sgd = |momentum, weight_decay, lr, batch| {
        Config::default().with(|c| {
            c.optimiser.momentum = momentum;
            c.optimiser.weight_decay = weight_decay;
            c.optimiser.lr = lr;
            c.training.batch = batch;
        })
    };
    match model {
        "mlp" => (|| mlp(784, &[128], 10).unwrap(), sgd(0.0, 0.0, 0.01, 64), (200, 2000)),
        "gpt" => {
            let network = || {
                gpt(&Gpt {
                    vocabulary: 1024,
                    positions: 128,
                    layers: 4,
                    width: 128,
                    heads: 4,
                    dropout: 0.0,
                    attention_dropout: 0.0,
                    tied: false,
                })
                .unwrap()
            };
            let adam = sgd(0.0, 0.01, 3e-4, 8).with(|c| {
                c.optimiser.name = "adamw".into();
                c.optimiser.beta1 = 0.9;
                c.optimiser.beta2 = 0.999;
                c.optimiser.eps = 1e-8;
            });
            (network, adam, (6, 40))
        }
        "resnet18" => {
            const PARTS: ResNet =
                ResNet { layers: 18, imagenet_stem: false, shape: (3, 32, 32), classes: 10 };
            (|| resnet(&PARTS).unwrap(), sgd(0.9, 5e-4, 0.1, 32), (2, 12))
        }
        "resnet50" => {
            const PARTS: ResNet = ResNet { layers: 50, imagenet_stem: true, shape: (3, 64, 64), classes: 10 };
            (|| resnet(&PARTS).unwrap(), sgd(0.9, 5e-4, 0.1, 8), (2, 12))
        }
        // Fine-tuning, as in examples/flowers: all layers but the last are frozen.
        "resnet34-fc" => {
            let network = || {
                const PARTS: ResNet =
                    ResNet { layers: 34, imagenet_stem: true, shape: (3, 224, 224), classes: 5 };
                let mut network = resnet(&PARTS).unwrap();
                network.freeze(&["*".into()], &["fc".into()]).unwrap();
                network
            };
            let adam = sgd(0.0, 0.0, 0.003, 16).with(|c| c.optimiser.name = "adam".into());
            (network, adam, (1, 5))
        }
        other => panic!("no model {other}; there are mlp, gpt, resnet18, resnet50, resnet34-fc"),
    }
}

/// The steps of one rank.
#[derive(Clone)]
struct Timed {
    /// Milliseconds of each step, in order of length.
    steps: Vec<f64>,
    /// Mean milliseconds of forward, backward and optimiser.
    parts: [f64; 3],
    loss: f32,
    flops: u64,
}

impl Timed {
    fn median(&self) -> f64 {
        self.steps[self.steps.len() / 2]
    }
}

/// Times `1 / turns` of the steps on a rank, which trains by `strategy` unless it is alone.
fn time((name, strategy): (&str, &str), threads: usize, turns: usize, comm: &Communicator) -> Result<Timed> {
    let (build, config, (warm, steps)) = case(name);
    let strategy = if comm.size() == 1 { "single" } else { strategy };
    let (network, config) = (build(), config.with(|c| c.strategy = strategy.into()));
    let (warm, steps) = (warm.div_ceil(turns), steps / turns);
    let (rows, classes, batch) = (network.rows(), network.classes(), config.training.batch);
    let optimiser = optim::build::<f32>(&config, network.params())?;
    let phases = network.forward_phases().into_iter().chain(network.backward_phases());
    let step: u64 = phases.map(|phase| network.cost(phase, batch).flops).sum();
    let flops = step + optimiser.cost(network.param_count()).flops;
    let whole = name == "gpt";
    let number = |i: usize| (i as u64 * 2_654_435_761 % 4_093) as f32;
    let x: Vec<f32> = (0..batch * network.inputs())
        .map(|i| if whole { number(i) as u32 as f32 % 1024.0 } else { number(i) / 1024.0 - 2.0 })
        .collect();
    let labels: Vec<u32> = (0..batch * rows).map(|i| number(i + 7) as u32 % classes as u32).collect();
    let mut samples = Batch { x, labels };
    let mut rank = RankTrainer::new(&config, build(), comm)?;
    rank.start(&mut Model::new(network, 0)?)?;
    let mut timed = Timed { steps: Vec::new(), parts: [0.0; 3], loss: 0.0, flops };
    ThreadPool::new(threads).enter(|| {
        for step in 0..warm + steps {
            let start = Instant::now();
            let done =
                rank.step(&mut samples, StepInput { lr: config.optimiser.lr, ..StepInput::default() }, None)?;
            let all = start.elapsed().as_secs_f64();
            timed.loss = done.loss as f32;
            if step >= warm {
                let (forward, optimiser) = (done.forward.as_secs(), done.optimiser.as_secs());
                for (part, span) in
                    timed.parts.iter_mut().zip([forward, all - forward - optimiser, optimiser])
                {
                    *part += span * 1e3 / steps as f64;
                }
                timed.steps.push(all * 1e3);
            }
        }
        Ok::<_, allfold_trainer::Error>(())
    })?;
    timed.steps.sort_by(f64::total_cmp);
    Ok(timed)
}

/// Operations per second of a large product on this core.
fn peak() -> f64 {
    let (a, b, mut out) = (vec![0.5f32; SIDE * SIDE], vec![0.25f32; SIDE * SIDE], vec![0f32; SIDE * SIDE]);
    let mut once = || {
        let start = Instant::now();
        matmul(&mut out, Store::Replace, Matrix::new(&a, SIDE, SIDE), Matrix::new(&b, SIDE, SIDE));
        std::hint::black_box(&mut out);
        2.0 * (SIDE * SIDE * SIDE) as f64 / start.elapsed().as_secs_f64()
    };
    (0..50).map(|_| once()).fold(0.0, f64::max)
}

fn print(
    (name, strategy): (&str, &str),
    (threads, ranks, how): (usize, u32, &str),
    timed: &Timed,
    peak: f64,
) {
    let rate = timed.flops as f64 / timed.median() / 1e6;
    println!(
        "{{\"engine\": \"allfold\", \"model\": \"{name}\", \"threads\": {threads}, \"ranks\": {ranks}, \"as\": \"{how}\", \"strategy\": \"{strategy}\", \
         \"med_ms\": {:.4}, \"min_ms\": {:.4}, \"forward_ms\": {:.4}, \"backward_ms\": {:.4}, \"optimiser_ms\": {:.4}, \
         \"gflops\": {rate:.1}, \"of_product\": {:.3}, \"loss\": {}}}",
        timed.median(),
        timed.steps[0],
        timed.parts[0],
        timed.parts[1],
        timed.parts[2],
        rate * 1e9 / (peak * threads as f64),
        timed.loss,
    );
}

/// The slowest rank's steps of `ranks` threads.
fn on_threads(name: (&str, &str), threads: usize, ranks: u32, turns: usize) -> Timed {
    let all = World::threads(ranks).run(|comm| time(name, threads, turns, &comm)).unwrap();
    all.into_iter().max_by(|a, b| a.median().total_cmp(&b.median())).unwrap()
}

/// Times one rank and several ranks, alternating; takes the median turn of each.
fn efficiency(name: (&str, &str), ranks: u32, peak: f64) {
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        alone.push(on_threads(name, 1, 1, TURNS));
        together.push(on_threads(name, 1, ranks, TURNS));
    }
    for turns in [&mut alone, &mut together] {
        turns.sort_by(|a, b| a.median().total_cmp(&b.median()));
    }
    let (alone, together) = (&alone[TURNS / 2], &together[TURNS / 2]);
    print(name, (1, 1, "threads"), alone, peak);
    print(name, (1, ranks, "threads"), together, peak);
    let (name, strategy) = name;
    println!(
        "{{\"engine\": \"allfold\", \"model\": \"{name}\", \"ranks\": {ranks}, \"as\": \"threads\", \"strategy\": \"{strategy}\", \
         \"efficiency\": {:.3}}}",
        alone.median() / together.median()
    );
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let word = |at: usize, default| words.get(at).map_or(default, |word: &String| word.as_str());
    let name = (word(0, "mlp"), word(3, "ddp"));
    let number = |at: usize| words.get(at).map_or(1, |word| word.parse().unwrap());
    let (threads, ranks) = (number(1), number(2) as u32);
    let peak = peak();
    if std::env::var_os("WORLD_SIZE").is_some() {
        let comm = Communicator::from_env().unwrap();
        let timed = time(name, threads, 1, &comm).unwrap();
        if comm.rank().0 == 0 {
            print(name, (threads, comm.size(), "processes"), &timed, peak);
        }
    } else if ranks > 1 {
        efficiency(name, ranks, peak);
    } else {
        print(name, (threads, 1, "threads"), &on_threads(name, threads, 1, 1), peak);
    }
}
