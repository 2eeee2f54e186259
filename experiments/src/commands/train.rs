//! `allfold train`: trains a network on threads, as one of many processes, or in virtual time.

mod draw;
mod files;
mod live;
mod summary;

use crate::predict::trace;
use crate::training::launch_mode::{LaunchMode, SimulatedRanks, operation_deadline};
use crate::training::measured_shares::shares_by_speed;
use crate::training::profile::{self, ProfileSchedule};
use crate::training::run::{self, RecordOptions};
use crate::training::tensorboard::Events;
use crate::training::{config, reference_losses};
use allfold_cli::common::Common;
use allfold_cli::devices::RankDevices;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_cli::{interruption, invocation, launched, memory, names, progress};
use allfold_collectives::Rank;
use allfold_collectives::environment::Environment;
use allfold_report::format::counted;
use allfold_report::sizes::rank_count;
use allfold_sim::Topology;
use allfold_trainer::config::{are_real_devices, without_effect};
use allfold_trainer::run::{fits_network, samples_of_rank};
use allfold_trainer::{Config, Dataset, Sampler};
use clap::ValueEnum;
use live::{Followed, Live};
use std::path::{Path, PathBuf};

/// Flags of `train`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold train --config experiments/configs/digits-cnn.toml
  allfold train --config experiments/configs/digits-cnn.toml --ranks 4 --set optimiser.lr=0.05 --set precision.amp=f16
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
    /// Number of ranks, 1 to 1048576 [default: 1, or the launcher's number]
    #[arg(long, value_name = "N", value_parser = rank_count)]
    ranks: Option<u32>,
    /// Stop after this many steps, 1 to 1000000000, with the learning rates of the whole run [default: training.stop_after, else all steps]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    steps: Option<u64>,
    #[arg(long, value_name = "S", help = strategies())]
    strategy: Option<String>,
    /// With sim: the simulated machine, a name (`allfold machines` lists them) or a file [default: nodes8]
    #[arg(long, value_name = "T")]
    topology: Option<String>,
    /// With sim: inject a fault, such as slow_rank=3:x4 or dead_rank=3@5ms (`allfold simulate --help` lists them); may be
    /// given again
    #[arg(long, value_name = "RULE")]
    fault: Vec<String>,
    /// Seed of the random draws of faults, 0 to 2^64 - 1
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "fault")]
    fault_seed: u64,
    /// What each rank computes on: cpu or cuda, or a device for each rank, such as cuda:0,cpu [default: the configuration's]; with
    /// sim, a device model [default: the machine's own GPU in f32, else a100_f32], also with others for some ranks, such as a100_f32,4-7:v100_f32
    #[arg(long, value_name = "D")]
    device: Option<String>,
    /// Share the samples of a step by the speed of these devices, not equally: with sim the speed of the models, on threads the
    /// speed measured in a few steps of each
    #[arg(long)]
    share_by_speed: bool,
    /// Write a Chrome trace: with sim, everything on every rank; with threads, one step of every rank; with processes, one
    /// step of rank 0
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The step to trace, 0 to the number of steps less 1; not with sim [default: the last]
    #[arg(long, value_name = "STEP", requires = "trace")]
    trace_step: Option<u64>,
    /// Write a Chrome trace of every layer's passes in some steps, and print the layers that take the most time; with processes,
    /// each rank writes a file of its own, and the layers are rank 0's
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// The steps to profile, from the first of this process, as by torch.profiler.schedule: of each period some steps wait, some warm up, and the active ones are
    /// recorded [default: skip=0,wait=1,warmup=1,active=3,repeat=1; repeat=0: until the run ends]
    #[arg(long, value_name = "SCHEDULE", requires = "profile")]
    profile_schedule: Option<ProfileSchedule>,
    /// Write an event file for TensorBoard into DIR
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
    /// Draw the losses, averaged over neighbouring steps, and the accuracies by epoch into an SVG file
    #[arg(long, value_name = "FILE", value_parser = allfold_cli::files::svg())]
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

    /// Refuses flags of the virtual clock without `--backend sim`, and flags that `sim` does not have.
    fn check(&self) -> CommandResult {
        if self.backend == Backend::Sim {
            if self.trace_step.is_some() {
                return Err(CommandError::usage(
                    "--trace of --backend sim holds every step: leave --trace-step out",
                ));
            }
            return match self.real() {
                Some(device) if device != "cpu" => Err(CommandError::usage(
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
        config.training.stop_after = self.steps.unwrap_or(config.training.stop_after);
        if let Some(device) = self.real() {
            config.device = device.into();
        }
        allfold_trainer::config::check(&config).map_err(CommandError::usage)?;
        Ok(config)
    }

    /// The steps to profile, of a run of this many steps.
    fn schedule(&self, steps: u64) -> CommandResult<Option<ProfileSchedule>> {
        let schedule = self.profile.as_ref().map(|_| self.profile_schedule.unwrap_or_default());
        match schedule {
            Some(schedule) if !schedule.fits(steps) => Err(CommandError::usage(format!(
                "--profile-schedule records none of the {} of this run: let it begin earlier, as by --profile-schedule wait=0,warmup=0,active=1",
                counted(steps as usize, "step")
            ))),
            _ => Ok(schedule),
        }
    }

    /// The real devices (not device models) that `--device` names, if any: one for all ranks, or one for each.
    fn real(&self) -> Option<&str> {
        self.device.as_deref().filter(|names| are_real_devices(names))
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

impl Args {
    /// Where the ranks run, from the flags and the environment.
    fn place(&self) -> CommandResult<LaunchMode> {
        let launched = match self.backend {
            Backend::Auto | Backend::Tcp => Environment::detect().map_err(CommandError::usage)?,
            Backend::Threads | Backend::Sim => {
                // The runs would read each other's checkpoints.
                launched::alone("threads and sim", "leave --backend out")?;
                None
            }
            Backend::Mpi => None,
        };
        let ranks = self.ranks.unwrap_or(1);
        match (self.backend, launched) {
            (Backend::Sim, _) => {
                let topology = Topology::named(self.topology(), ranks).map_err(CommandError::usage)?;
                let devices = RankDevices::of(self.device.as_deref(), self.topology())?;
                devices.check(ranks)?;
                let faults = devices.with(&self.fault, &topology)?;
                let faults = faults.seeded(self.fault_seed);
                Ok(LaunchMode::Sim(Box::new(SimulatedRanks { topology, devices, faults })))
            }
            (Backend::Mpi, _) => self.within_mpi(),
            // An interactive shell or a job of a single process has started no other ranks.
            (Backend::Auto, Some(launched)) if launched.world_size == 1 && ranks > 1 => {
                Ok(LaunchMode::Threads(ranks))
            }
            (_, Some(launched)) => match self.ranks.filter(|ranks| *ranks != launched.world_size) {
                Some(ranks) => Err(names::other_ranks(ranks, launched.launcher, launched.world_size)),
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
            Some(ranks) => Err(names::other_ranks(ranks, "mpirun", size)),
            None => Ok(LaunchMode::Mpi(Rank(rank), size)),
        }
    }
}

/// The configuration with what the flags replace, and where the ranks run.
fn checked(args: &Args, path: &Path) -> CommandResult<(Config, LaunchMode)> {
    let mut config = args.over(config::read(path)?)?;
    args.check()?;
    if args.backend == Backend::Sim && config.uses_gpus() {
        return Err(CommandError::usage(
            "`device` is cuda, which computes in real time and cannot run with --backend sim",
        ));
    }
    memory::threads(args.ranks.unwrap_or(1))?;
    if args.profile.is_some() && config.uses_gpus() {
        return Err(CommandError::usage(
            "--profile times the layers on the CPU and on virtual time, and `device` is cuda; NVIDIA's nsys profiles kernels",
        ));
    }
    let place = args.place()?;
    if place.kind().1 {
        operation_deadline()?;
    }
    let ranks = place.ranks();
    if config.strategy == "single" && ranks > 1 {
        return Err(CommandError::usage(format!(
            "strategy `single` trains on 1 rank, not {ranks}; use --strategy ddp"
        )));
    }
    if let LaunchMode::Process(launched) = &place {
        // A job that was started again after a failure resumes from its checkpoint.
        config.checkpoint.resume |= launched.epoch > 0 && config.checkpoint.writes();
    }
    Ok((config, place))
}

/// Loads the training and the test set, after checking that the ranks can share the network. Sets the shares that the flags request.
fn loaded(args: &Args, config: &mut Config, place: &LaunchMode) -> CommandResult<(Dataset, Dataset)> {
    let fits = |config: &Config, form| fits_network(config, place.ranks(), form).map_err(CommandError::from);
    // If the configuration gives the samples' shape, the check runs before the data is read.
    if let Some(form) = allfold_trainer::data::form(config) {
        fits(config, form)?;
    }
    // A missing device is reported once and not by every rank.
    place.device(config)?;
    let data = allfold_trainer::data::load(config)?;
    if args.share_by_speed {
        config.parallel.shares = shares_by_speed(config, &data, place)?;
    }
    fits(config, data.0.form())?;
    Ok(data)
}

/// Prints what is trained on what, and warns of keys without effect and of data from which nothing can be learnt.
fn heading(
    args: &Args,
    config: &Config,
    data: &(Dataset, Dataset),
    place: &LaunchMode,
    output: &mut RunOutput,
) -> CommandResult {
    // With --strategy, the file's keys for its own strategy are nobody's mistake.
    let given = |note: &str| {
        args.strategy.is_none()
            || args
                .set
                .iter()
                .any(|set| note.contains(&format!("`{}`", set.split('=').next().unwrap_or_default())))
    };
    without_effect(config).iter().filter(|note| given(note)).for_each(|note| tracing::warn!("{note}"));
    let parameters = summary::parameters(config, &data.0)?;
    let batch = samples_of_rank(config, place.ranks(), data.0.len())?;
    output.say(summary::heading(config, parameters, (place.ranks(), batch), &clock(args, place)))?;
    summary::notes(config, &data.0).iter().for_each(|note| tracing::warn!("{note}"));
    output.say(summary::data(config, data))
}

/// Trains, prints the progress and the result, and writes a record per step.
pub fn run(args: &Args) -> CommandResult {
    let Some(path) = args.config.as_ref().filter(|_| !args.keys) else {
        let mut output = RunOutput::open(None, None)?;
        output.say(Config::documented().trim_end())?;
        return output.close();
    };
    let (mut config, place) = checked(args, path)?;
    let ranks = place.ranks();
    let data = loaded(args, &mut config, &place)?;
    let sampler = Sampler::of(&config, data.0.len(), ranks);
    let steps = sampler.run_steps(&config);
    if let Some(step) = args.trace_step.filter(|step| *step >= steps) {
        return Err(CommandError::usage(format!(
            "--trace-step is {step}, but this run has {}, counted from 0",
            counted(steps as usize, "step")
        )));
    }
    let schedule = args.schedule(steps)?;
    let reference = args.compare.as_deref().map(reference_losses::read).transpose()?;
    let json = args.common.json.as_deref().filter(|_| place.is_reporter());
    let mut output = RunOutput::open(json, Some(config.seed))?;
    let profile = args.profile.as_deref().map(|path| files::profile_path(path, &place));
    args.trace.iter().chain(&args.plot).chain(&profile).try_for_each(|path| output.will_write(path))?;
    if config.checkpoint.writes() && place.is_reporter() {
        output::folder(Path::new(&config.checkpoint.dir))?;
    }
    let events =
        args.tensorboard.as_deref().filter(|_| place.is_reporter()).map(Events::create).transpose()?;
    let live = match place.is_reporter() {
        true => {
            // A refused run has printed its one line by now.
            heading(args, &config, &data, &place, &mut output)?;
            Some(Live::of(args, &config, &place, &output, [sampler.steps(&config), steps])?)
        }
        false => None,
    };
    let followed = Followed::of(live, &config, &place);
    let bar = match place.is_reporter() {
        true => {
            progress::steps(steps, &format!("{} on {}", config.model.name, counted(ranks as usize, "rank")))
        }
        false => progress::hidden(),
    };
    let noted = RecordOptions {
        events,
        step: args.trace_step,
        follow: followed.follow,
        losses: true,
        spans: args.trace.is_some(),
        waiting: args.common.json.is_some() || invocation::keeper().is_some(),
        profile: schedule,
        stopping: followed.end.stopping(),
    };
    let trained = run::run_on(&config, &data, &place, &bar, noted);
    drop(bar);
    interruption::let_the_signal_end();
    followed.end.if_asked(&place, trained.is_err());
    let trained = trained?;
    let profiled =
        profile.map_or(Ok(()), |path| trace::profile(&path, place.first_rank(), &trained.profiles));
    if !place.is_reporter() {
        return profiled;
    }
    summary::say(&config, &trained, &mut output)?;
    if args.profile.is_some() {
        profile::summary(&trained.profiles, 12).into_iter().try_for_each(|line| output.say(line))?;
    }
    files::records(&config, &place, &trained, followed.end.next(), &mut output)?;
    // The records are written even if another file cannot be.
    let closed = output.close();
    profiled?;
    files::plot_and_trace(args, &config, &place, &trained, reference)?;
    closed
}

/// The clock by which a run's times were taken, in words.
fn clock(args: &Args, place: &LaunchMode) -> String {
    match place {
        LaunchMode::Threads(_) => "measured on this machine".into(),
        LaunchMode::Process(_) | LaunchMode::Joined(_) => "measured, one process per rank".into(),
        LaunchMode::Mpi(..) => "measured, processes of an MPI job".into(),
        LaunchMode::Sim(place) => {
            format!("simulated: {} on {}, all times are virtual", place.devices, args.topology())
        }
    }
}

/// The help of `--strategy`: the names of all strategies, the program's own included.
fn strategies() -> String {
    let names: Vec<&str> = allfold_trainer::strategies::names().collect();
    format!("Training strategy: {} [default: the configuration's]", names.join(", "))
}
