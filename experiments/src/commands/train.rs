//! `allfold train`: trains a network on threads, as one of many processes, or in virtual time.

mod summary;

use crate::cli::common::Common;
use crate::cli::error::{CommandError, CommandResult};
use crate::cli::output::{self, RunOutput};
use crate::cli::{memory, progress};
use crate::predict::trace;
use crate::training::launch_mode::{LaunchMode, SimulatedRanks};
use crate::training::run::{self, RecordOptions};
use crate::training::tensorboard::Events;
use crate::training::trained::Trained;
use crate::training::{config, reference_losses};
use allfold_collectives::Rank;
use allfold_collectives::environment::Environment;
use allfold_report::format::counted;
use allfold_report::loss_curve::{self, Course};
use allfold_report::records::RecordKind;
use allfold_report::sizes::rank_count;
use allfold_sim::{Device, Faults, Topology};
use allfold_trainer::{Config, Sampler};
use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// Flags of `train`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold train --config experiments/configs/digits-cnn.toml
  allfold train --config experiments/configs/digits-cnn.toml --ranks 4 --set lr=0.05 --set amp=f16
  allfold launch -n 4 -- train --config experiments/configs/digits-cnn.toml
  allfold train --config experiments/configs/digits-mlp.toml --ranks 8 --backend sim --topology nodes8 --trace step.json
  allfold train --config experiments/configs/digits-mlp.toml --ranks 4 --backend sim --fault slow_rank=3:x4
  allfold train --config experiments/configs/cifar-resnet18.toml --device cuda --ranks 2

Losses and weights have the same bits on threads, sim and tcp: compare the hashes at the end.")]
pub(crate) struct Args {
    /// The configuration, a TOML file
    #[arg(long, value_name = "FILE", required_unless_present = "keys")]
    config: Option<PathBuf>,
    /// Replace the value of a key of the configuration; may be given many times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print every key of the configuration with its meaning and default, and exit
    #[arg(long)]
    keys: bool,
    /// How ranks exchange data: threads (real time), sim (virtual time), tcp (this process is one rank of a launcher's
    /// job), mpi (this process is one rank of mpirun's job), or auto: tcp under a launcher, else threads
    #[arg(long, value_enum, default_value = "auto")]
    backend: Backend,
    /// Number of ranks [default: 1, or the launcher's number]
    #[arg(long, value_name = "N", value_parser = rank_count)]
    ranks: Option<u32>,
    /// Stop after this many steps [default: the configuration's max_steps, else all epochs]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Training strategy: single, ddp, data_parallel, zero1, zero2, zero3 or pipeline [default: the configuration's]
    #[arg(long, value_name = "S")]
    strategy: Option<String>,
    /// With sim: the simulated machine, a name (`allfold machines` lists them) or a file [default: nodes8]
    #[arg(long, value_name = "T")]
    topology: Option<String>,
    /// With sim: inject a fault, such as slow_rank=3:x4 or dead_rank=3@5ms (`allfold simulate --help` lists them); may be
    /// given again
    #[arg(long, value_name = "RULE")]
    fault: Vec<String>,
    /// Seed of the random draws of faults
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "fault")]
    fault_seed: u64,
    /// What each rank computes on: cpu or cuda [default: the configuration's]; with sim, a device model [default: a100_f32]
    #[arg(long, value_name = "D")]
    device: Option<String>,
    /// Write a Chrome trace: with sim, everything on every rank; with threads, one step of every rank; with processes, one
    /// step of rank 0
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The step to trace, from 0; not with sim [default: the last]
    #[arg(long, value_name = "STEP", requires = "trace")]
    trace_step: Option<u64>,
    /// Write an event file for TensorBoard into DIR
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
    /// Draw the losses, averaged over neighbouring steps, into an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Draw the losses of another engine into the same plot: a file with a line of JSON, `step` and `loss`, per step
    #[arg(long, value_name = "FILE", requires = "plot")]
    compare: Option<PathBuf>,
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

    /// Refuses flags of the virtual clock without `--backend sim`, and flags that `sim` does not have.
    fn check(&self) -> CommandResult {
        if self.backend == Backend::Sim {
            if self.trace_step.is_some() {
                return Err(CommandError::usage(
                    "--trace of --backend sim holds every step: leave --trace-step out",
                ));
            }
            return match self.real() {
                Some("cuda") => Err(CommandError::usage(
                    "--device cuda computes in real time and cannot run with --backend sim",
                )),
                _ => Ok(()),
            };
        }
        let modeled = self.device.is_some() && self.real().is_none();
        let faults = !self.fault.is_empty();
        let given = [("--topology", self.topology.is_some()), ("--device", modeled), ("--fault", faults)];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(CommandError::usage(format!(
                "{flag} describes the simulated machine: use it with --backend sim"
            ))),
            None => Ok(()),
        }
    }

    /// The configuration with the values that the flags replace.
    fn over(&self, mut config: Config) -> CommandResult<Config> {
        for pair in &self.set {
            config::replace(&mut config, pair)?;
        }
        if let Some(strategy) = &self.strategy {
            config.strategy.clone_from(strategy);
        }
        config.max_steps = self.steps.unwrap_or(config.max_steps);
        if let Some(device) = self.real() {
            config.device = device.into();
        }
        config.check().map_err(CommandError::usage)?;
        Ok(config)
    }

    /// The real device (not a device model) that `--device` names, if any.
    fn real(&self) -> Option<&str> {
        let known = |name: &&str| allfold_trainer::config::DEVICES.iter().any(|(known, _)| known == name);
        self.device.as_deref().filter(known)
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Auto,
    Threads,
    Tcp,
    Mpi,
    Sim,
}

/// Refuses to run all ranks in this process if a launcher has started several: the runs would read each other's checkpoints.
fn alone() -> CommandResult {
    match Environment::detect() {
        Ok(Some(found)) if found.world_size > 1 => Err(CommandError::usage(format!(
            "--backend threads and sim run all ranks in one process, but {} has started {}: leave --backend out",
            found.launcher, found.world_size
        ))),
        _ => Ok(()),
    }
}

impl Args {
    /// Where ranks run, as the flags and the environment say.
    fn place(&self) -> CommandResult<LaunchMode> {
        let launched = match self.backend {
            Backend::Auto | Backend::Tcp => Environment::detect().map_err(CommandError::usage)?,
            Backend::Threads | Backend::Sim => {
                alone()?;
                None
            }
            Backend::Mpi => None,
        };
        let ranks = self.ranks.unwrap_or(1);
        match (self.backend, launched) {
            (Backend::Sim, _) => {
                let topology = Topology::named(self.topology(), ranks).map_err(CommandError::usage)?;
                let device = Device::named(self.device()).map_err(CommandError::usage)?;
                let faults = Faults::parse(self.fault.iter().map(String::as_str), &topology);
                let faults = faults.map_err(CommandError::usage)?.seeded(self.fault_seed);
                Ok(LaunchMode::Sim(Box::new(SimulatedRanks { topology, device, faults })))
            }
            (Backend::Mpi, _) => self.within_mpi(),
            (_, Some(launched)) => match self.ranks.filter(|ranks| *ranks != launched.world_size) {
                Some(ranks) => Err(CommandError::usage(format!(
                    "--ranks is {ranks}, but {} has started {} ranks; leave --ranks out",
                    launched.launcher, launched.world_size
                ))),
                None => Ok(LaunchMode::Process(Box::new(launched))),
            },
            (Backend::Tcp, None) => Err(CommandError::usage(
                "--backend tcp needs a launcher: allfold launch -n N -- train .., torchrun, srun or mpirun",
            )),
            _ => Ok(LaunchMode::Threads(ranks)),
        }
    }
}

impl Args {
    /// The rank of this process and the world size, as mpirun gives them in the environment.
    fn within_mpi(&self) -> CommandResult<LaunchMode> {
        let number = |names: [&str; 2]| names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        let rank = number(["OMPI_COMM_WORLD_RANK", "PMI_RANK"]);
        let size = number(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]);
        let (Some(rank), Some(size)) = (rank, size) else {
            return Err(CommandError::usage(
                "--backend mpi needs mpirun: mpirun -n N allfold train .. --backend mpi",
            ));
        };
        match self.ranks.filter(|ranks| *ranks != size) {
            Some(ranks) => Err(CommandError::usage(format!(
                "--ranks is {ranks}, but mpirun has started {size} ranks; leave --ranks out"
            ))),
            None => Ok(LaunchMode::Mpi(Rank(rank), size)),
        }
    }
}

/// Trains, prints the progress and the result, and writes a record per step.
pub fn run(args: &Args) -> CommandResult {
    let Some(path) = args.config.as_ref().filter(|_| !args.keys) else {
        let mut output = RunOutput::open(None, None)?;
        output.say(Config::documented().trim_end())?;
        return output.close();
    };
    let mut config = args.over(config::read(path)?)?;
    args.check()?;
    if args.backend == Backend::Sim && config.device != "cpu" {
        return Err(CommandError::usage(
            "`device` is cuda, which computes in real time and cannot run with --backend sim",
        ));
    }
    let ranks = args.ranks.unwrap_or(1);
    memory::threads(ranks)?;
    let place = args.place()?;
    let ranks = place.ranks();
    if config.strategy == "single" && ranks > 1 {
        return Err(CommandError::usage(format!(
            "strategy `single` trains on 1 rank, not {ranks}; use --strategy ddp"
        )));
    }
    if let LaunchMode::Process(launched) = &place {
        // A job that was started again after a failure resumes from its checkpoint.
        config.resume |= launched.epoch > 0 && config.checkpoint_every > 0;
    }
    let data = run::load(&config)?;
    let steps = Sampler::of(&config, data.0.len(), ranks).run_steps(&config);
    if let Some(step) = args.trace_step.filter(|step| *step >= steps) {
        return Err(CommandError::usage(format!(
            "--trace-step is {step}, but this run has {}, counted from 0",
            counted(steps as usize, "step")
        )));
    }
    let reference = args.compare.as_deref().map(reference_losses::read).transpose()?;
    let json = args.common.json.as_deref().filter(|_| place.is_reporter());
    let mut output = RunOutput::open(json, Some(config.seed))?;
    args.trace.iter().chain(&args.plot).try_for_each(|path| output.will_write(path))?;
    if config.checkpoint_every > 0 && place.is_reporter() {
        output::folder(Path::new(&config.checkpoint_dir))?;
    }
    let bar = progress::bar(1, &format!("{} on {} ranks", config.model, ranks));
    let events =
        args.tensorboard.as_deref().filter(|_| place.is_reporter()).map(Events::create).transpose()?;
    let noted = RecordOptions { events, step: args.trace_step, spans: args.trace.is_some() };
    let trained = run::run_on(&config, &data, &place, &bar, noted);
    bar.finish_and_clear();
    let trained = trained?;
    if !place.is_reporter() {
        return Ok(());
    }
    summary::say(&config, &trained, &clock(args, &place), &mut output)?;
    match place {
        LaunchMode::Threads(_) => keep(&mut output, &trained.measured(&config))?,
        LaunchMode::Process(_) => keep(&mut output, &trained.measured_over_tcp(&config))?,
        LaunchMode::Mpi(..) => keep(&mut output, &trained.measured_over_mpi(&config))?,
        LaunchMode::Sim(_) => keep(&mut output, &trained.simulated(&config))?,
    }
    // The records are written even if another file cannot be.
    let closed = output.close();
    if let Some(path) = &args.plot {
        draw(path, &config.model, &trained.result.losses, reference)?;
    }
    if let Some(path) = &args.trace {
        match place {
            LaunchMode::Sim(_) => trace::activities(path, &trained.timeline)?,
            LaunchMode::Threads(_) | LaunchMode::Process(_) | LaunchMode::Mpi(..) => {
                one_step(path, args, &trained)?
            }
        }
    }
    closed
}

/// The clock by which a run's times were taken, in words.
fn clock(args: &Args, place: &LaunchMode) -> String {
    match place {
        LaunchMode::Threads(_) => "measured on this machine".into(),
        LaunchMode::Process(_) => "measured, one process per rank".into(),
        LaunchMode::Mpi(..) => "measured, processes of an MPI job".into(),
        LaunchMode::Sim(_) => {
            format!("simulated: {} on {}, all times are virtual", args.device(), args.topology())
        }
    }
}

/// Writes the trace of one step of this process.
fn one_step(path: &Path, args: &Args, trained: &Trained) -> CommandResult {
    let steps = trained.result.losses.len();
    let first = steps - trained.made();
    let step = args.trace_step.map_or(steps.saturating_sub(1), |step| step as usize);
    if !(first..steps).contains(&step) {
        return Err(CommandError::usage(format!(
            "step {step} was not traced: this process ran {} steps, from step {first} on",
            trained.made()
        )));
    }
    trace::spans(path, &trained.spans(step))
}

/// Draws the losses of a run, and another engine's if given, into an SVG file.
fn draw(path: &Path, model: &str, losses: &[f64], reference: Option<Course>) -> CommandResult {
    let steps = losses.iter().enumerate().map(|(step, &loss)| (step as f64, loss)).collect();
    let courses = [("allfold".into(), steps)].into_iter().chain(reference).collect();
    let figure = loss_curve::figure(model, courses).map_err(CommandError::run)?;
    output::replace(path, figure.file(&format!("Training loss of the {model}")).as_bytes())
}

fn keep<R: RecordKind>(output: &mut RunOutput, steps: &[R]) -> CommandResult {
    steps.iter().try_for_each(|step| output.record(step))
}
