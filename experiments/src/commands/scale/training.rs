//! `scale --config`: the scaling curve of a training run, measured where the ranks exist, simulated where they do not.

use super::{notes, page};
use crate::measure::machine_limits::cores;
use crate::predict::exchanges::Exchanges;
use crate::scaling::curve::{self, Reach};
use crate::scaling::points::{FaultRules, Scaling};
use crate::scaling::workload::thinned;
use crate::training::config;
use allfold_cli::common::Common;
use allfold_cli::devices::RankDevices;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::memory;
use allfold_cli::output::RunOutput;
use allfold_collectives::environment::Environment;
use allfold_collectives::{Communicator, Joining, ReduceOp};
use allfold_report::format::counted;
use allfold_report::sizes::RankCounts;
use std::path::PathBuf;

/// Flags of a training run's scaling curve. The required flags are required only without a subcommand.
#[derive(clap::Args, Debug)]
#[group(skip)]
pub(crate) struct Args {
    /// The configuration, a TOML file
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Replace the value of a key of the configuration; may be given many times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Replace the configuration's strategy. Ranks that share samples take `training.batch` of them together, so that strategies may
    /// differ in the samples of a step: `allfold compare --modeled-only` gives all of them the same
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    /// Rank counts of 1 to 1048576, such as 1,2,4,8,64; from a long range, its powers of two
    #[arg(long, value_name = "COUNTS", required = true)]
    ranks: Option<RankCounts>,
    /// The simulated machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T", default_value = "nodes8")]
    topology: String,
    /// What each rank of the simulated machine computes on: a device, or with others for some ranks, such as a100_f32,4-7:v100_f32.
    /// A GPU's name alone, or with _bf16, means its tensor cores, with _f32 plain f32 [default: the machine's own GPU in f32, else a100_f32]
    #[arg(long, value_name = "D")]
    device: Option<String>,
    /// Share the samples of a step by the speed of these devices, not equally
    #[arg(long)]
    share_by_speed: bool,
    /// Steps, 1 to 1000000, of each run on a real clock, or with real arithmetic on the virtual clock
    #[arg(long, value_name = "STEPS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// Run real arithmetic on the virtual clock for up to this many ranks, 0 to 4096 [default: 4, or 0 where the configuration trains
    /// on GPUs, which compute in real time]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=4096))]
    sim_ranks: Option<u32>,
    /// Inject a fault into the runs on the virtual clock, such as slow_rank=3:x4 (`allfold simulate --help` lists them); may be given
    /// again. Numbers of ranks that do not have the rule's ranks or links run without the fault
    #[arg(long, value_name = "RULE", conflicts_with = "modeled_only")]
    fault: Vec<String>,
    /// Seed of the random draws of faults, 0 to 2^64 - 1
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "fault")]
    fault_seed: u64,
    /// Run no arithmetic: model every point from shapes, FLOPs and bytes
    #[arg(long)]
    modeled_only: bool,
    /// How exchanges of modeled points are timed; simulated agrees with runs on the virtual clock [default: with --modeled-only nccl on a
    /// machine that `allfold machines` lists, with whole nodes and no fat tree; else simulated]
    #[arg(long, value_enum)]
    collectives: Option<Exchanges>,
    /// Write the curves as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Measures and predicts every point, and prints a table of each kind.
pub fn run(args: &Args) -> CommandResult {
    let (Some(path), Some(ranks)) = (&args.config, &args.ranks) else {
        return Err(CommandError::usage("`allfold scale` needs --config FILE and --ranks COUNTS"));
    };
    let mut config = config::read(path)?;
    args.set.iter().try_for_each(|pair| config::replace(&mut config, pair))?;
    if let Some(strategy) = &args.strategy {
        config.strategy.clone_from(strategy);
    }
    allfold_trainer::config::check(&config).map_err(CommandError::usage)?;
    config.training.max_steps = args.steps;
    // The run has enough epochs for its steps, on any number of ranks.
    config.training.epochs = args.steps;
    let devices = RankDevices::of(args.device.as_deref(), &args.topology)?;
    let faults = FaultRules { rules: args.fault.clone(), seed: args.fault_seed };
    let scaling = Scaling::new(config, args.topology.clone(), devices);
    // Beside runs on the virtual clock, which send every message, modeled points take the same links.
    let simulated = (!args.modeled_only).then_some(Exchanges::Simulated);
    let exchanges = Exchanges::of(args.collectives.or(simulated), &args.topology, &thinned(&ranks.0));
    let scaling = scaling.faulty(faults).shared(args.share_by_speed).timed_by(exchanges);
    scaling.check(ranks)?;
    let trains = !args.modeled_only;
    if trains && args.sim_ranks.is_some_and(|on_virtual_clock| on_virtual_clock > 0) {
        scaling.check_virtual_clock()?;
    }
    let job = match job(ranks, trains)? {
        Some((job, of)) => {
            enough_gpus(&scaling, &job, &of)?;
            Some(job)
        }
        None => None,
    };
    let reports = job.as_ref().is_none_or(|job| job.rank().0 == 0);
    let gpus = match &job {
        Some(job) => Some(job.size()),
        None if trains => scaling.gpus()?,
        None => None,
    };
    let scaling = match job {
        Some(job) => scaling.within(job),
        None => scaling,
    };
    let on_virtual_clock = args.sim_ranks.unwrap_or(if gpus.is_some() { 0 } else { 4 });
    memory::threads(on_virtual_clock)?;
    scaling.check_faults(ranks, on_virtual_clock)?;
    let mut output = match reports {
        true => RunOutput::open(args.common.json.as_deref(), Some(scaling.config.seed))?,
        false => RunOutput::silent(Some(scaling.config.seed)),
    };
    args.html.iter().try_for_each(|path| output.will_write(path))?;
    output.check_text()?;
    if let Some(gpus) = gpus.filter(|gpus| *gpus < ranks.greatest()) {
        let gpus = counted(gpus as usize, "GPU");
        output.say(format!("measured up to {gpus}, which is all that this machine has"))?;
    }
    let measured = gpus.unwrap_or_else(cores);
    let reach = if trains { Reach { measured, on_virtual_clock } } else { Reach::default() };
    curve::draw(&scaling, ranks, reach, None, &mut output)?;
    notes::notes(&scaling.config, &scaling.devices, ranks)
        .into_iter()
        .try_for_each(|note| output.say(note))?;
    if let Some(path) = args.html.as_ref().filter(|_| reports) {
        page::write(path, &mut output)?;
    }
    output.close()
}

/// The job on whose ranks points are measured, if a launcher has started this process as one of several.
///
/// # Errors
/// A number of ranks that the job does not have; ranks that cannot connect.
fn job(ranks: &RankCounts, trains: bool) -> CommandResult<Option<(Communicator, Environment)>> {
    let Some(found) = Environment::detect().map_err(CommandError::usage)?.filter(|job| job.world_size > 1)
    else {
        return Ok(None);
    };
    if !trains {
        return Err(CommandError::usage("--modeled-only trains nothing: run it without the launcher"));
    }
    let (most, size) = (ranks.greatest(), found.world_size);
    if most > size {
        return Err(CommandError::usage(format!(
            "--ranks {most} is a point of more ranks than the {size} of this job: leave it out, or start {most} ranks"
        )));
    }
    Ok(Some((Communicator::join(&found, Joining::from_env()?)?, found)))
}

/// Refuses a job in which several ranks of some host would share a GPU.
fn enough_gpus(scaling: &Scaling, job: &Communicator, of: &Environment) -> CommandResult {
    let Some(gpus) = scaling.gpus()? else { return Ok(()) };
    let mut short = [i64::from(of.local_rank >= gpus)];
    job.all_reduce(&mut short, ReduceOp::Max)?;
    match short {
        [0] => Ok(()),
        _ => Err(CommandError::usage(format!(
            "{} of a host would share {}; start at most one rank per GPU",
            counted(of.local_world_size as usize, "rank"),
            counted(gpus as usize, "GPU")
        ))),
    }
}
