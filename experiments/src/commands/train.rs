//! `allfold train`: trains a network on the digits, on threads or on virtual time.

use crate::cli::Common;
use crate::failure::{Failure, Outcome};
use crate::records::Record;
use crate::session::{self, Session};
use crate::sizes::rank_count;
use crate::training::{self, Place, Trained};
use crate::{memory, names, progress, trace};
use allfold_sim::{Device, Topology};
use allfold_trainer::Config;
use clap::ValueEnum;
use std::path::PathBuf;

/// Flags of `train`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold train --config experiments/configs/digits-cnn.toml
  allfold train --config experiments/configs/digits-cnn.toml --ranks 4
  allfold train --config experiments/configs/digits-mlp.toml --ranks 8 --backend sim --topology nodes8 --trace step.json

The losses and weights are the same bits on threads and on sim: compare the hashes at the end.")]
pub struct Args {
    /// The configuration, a TOML file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// What carries the data: threads (real time) or sim (virtual time)
    #[arg(long, value_enum, default_value = "threads")]
    backend: Backend,
    /// Size of the group
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = rank_count)]
    ranks: u32,
    /// Stop after this many steps [default: the configuration's max_steps, else all epochs]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// How ranks train together: single or ddp [default: the configuration's]
    #[arg(long, value_name = "S")]
    strategy: Option<String>,
    /// On sim: the machine, a built-in name or a TOML file [default: nodes8]
    #[arg(long, value_name = "T")]
    topology: Option<String>,
    /// On sim: what each rank computes on [default: a100_f32]
    #[arg(long, value_name = "D")]
    device: Option<String>,
    /// On sim: write a Chrome trace of what every rank did
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn topology(&self) -> &str {
        self.topology.as_deref().unwrap_or("nodes8")
    }

    fn device(&self) -> &str {
        self.device.as_deref().unwrap_or("a100_f32")
    }

    /// Refuses flags of the virtual clock where there is none.
    fn check(&self) -> Outcome {
        let given = [
            ("--topology", self.topology.is_some()),
            ("--device", self.device.is_some()),
            ("--trace", self.trace.is_some()),
        ];
        match given.iter().find(|(_, given)| *given && self.backend == Backend::Threads) {
            Some((flag, _)) => {
                Err(Failure::usage(format!("{flag} needs the virtual clock: add --backend sim")))
            }
            None => Ok(()),
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Threads,
    Sim,
}

/// Trains, prints the course and the end, and leaves a record per step.
pub fn run(args: &Args) -> Outcome {
    let mut config = training::config(&args.config)?;
    if let Some(strategy) = &args.strategy {
        config.strategy = strategy.clone();
        config.check().map_err(Failure::usage)?;
    }
    config.max_steps = args.steps.unwrap_or(config.max_steps);
    if config.strategy == "single" && args.ranks > 1 {
        return Err(Failure::usage(format!(
            "the strategy single has 1 rank, not {}; use --strategy ddp",
            args.ranks
        )));
    }
    args.check()?;
    memory::threads(args.ranks)?;
    let place = match args.backend {
        Backend::Threads => Place::Threads(args.ranks),
        Backend::Sim => {
            let topology = Topology::named(args.topology(), args.ranks).map_err(Failure::usage)?;
            let device = Device::named(args.device()).map_err(Failure::usage)?;
            Place::Sim(Box::new((topology, device)))
        }
    };
    if let Some(path) = &args.trace {
        session::writable(path)?;
    }
    let mut session = Session::open(args.common.json.as_deref(), Some(config.seed))?;
    let bar = progress::bar(1, &format!("{} on {} ranks", config.model, args.ranks));
    let trained = training::run(&config, &place, &bar);
    bar.finish_and_clear();
    let trained = trained?;
    if let Some(path) = &args.trace {
        trace::activities(path, &trained.timeline)?;
    }
    summary(args, &config, &trained, &mut session)?;
    match args.backend {
        Backend::Threads => keep(&mut session, &trained.measured(&config, args.ranks))?,
        Backend::Sim => keep(&mut session, &trained.simulated(&config, args.ranks))?,
    }
    session.close()
}

fn keep<R: Record>(session: &mut Session, steps: &[R]) -> Outcome {
    steps.iter().try_for_each(|step| session.record(step))
}

/// The course of the loss, and what came out.
fn summary(args: &Args, config: &Config, trained: &Trained, session: &mut Session) -> Outcome {
    let result = &trained.result;
    let clock = match args.backend {
        Backend::Threads => "measured on this machine".to_string(),
        Backend::Sim => format!("simulated: {} on {}, all times are virtual", args.device(), args.topology()),
    };
    session.say(format!(
        "{} with {} parameters, {}, {}, batch {} each; {clock}",
        config.model,
        result.parameters,
        config.strategy,
        names::counted(args.ranks as usize, "rank"),
        config.batch
    ))?;
    let losses = &result.losses;
    let every = losses.len().div_ceil(10).max(1);
    for (step, loss) in
        losses.iter().enumerate().filter(|(step, _)| step % every == 0 || step + 1 == losses.len())
    {
        session.say(format!("  step {step:>6}  loss {loss:.6}"))?;
    }
    let test = &result.test;
    session.say(format!(
        "accuracy {:.2} % ({} of {} test samples), test loss {:.6}",
        test.accuracy() * 100.0,
        test.correct,
        test.samples,
        test.loss
    ))?;
    let (step_us, error_us) = trained.step_us();
    session.say(format!(
        "{:.0} samples/s; a step takes {step_us:.1} +- {error_us:.1} us:",
        result.throughput()
    ))?;
    let parts = trained.breakdown();
    session.say(format!(
        "  data {:.1}, forward {:.1}, backward {:.1}, exposed communication {:.1}, optimiser {:.1}",
        parts.data_us, parts.forward_us, parts.backward_us, parts.exposed_us, parts.optimiser_us
    ))?;
    session.say(format!("losses_hash {}\nweights_hash {}", trained.losses_hash(), trained.weights_hash()))
}
