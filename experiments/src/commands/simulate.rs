//! `allfold simulate`: nccl-tests' table in virtual time.

mod nccl;

use crate::call::plan::Choice;
use crate::call::sweep::SweepArgs;
use crate::call::{plot, proved, table};
use crate::predict::critical_path;
use crate::predict::machine::{SimulatedMachine, refused};
use crate::predict::nccl::{NcclMachine, NcclOptions};
use crate::predict::trace;
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::memory;
use allfold_cli::names;
use allfold_cli::output::{self, RunOutput};
use allfold_cli::progress;
use allfold_collectives::registry;
use allfold_collectives::time::{self, Engine, LinkSharing, Sent};
use allfold_report::format::{self, counted};
use allfold_report::records::{SimulatedCollective, SimulatorSpeed};
use allfold_sim::fault::{FaultKind, KINDS, span};
use allfold_sim::machines::presets::Preset;
use allfold_sim::{Faults, Picos, Sharing};
use nccl::NcclArgs;
use std::path::PathBuf;

/// The default deadline if an injected fault may keep a collective from ending: 300 s.
const HANG_TIMEOUT: Picos = Picos(300_000_000_000_000);

/// Flags of `simulate`.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("Examples:
  allfold simulate all_reduce --topology nodes8 --ranks 1024 --algo ring -b 1M -e 1G -f 4
  allfold simulate broadcast --topology switch --ranks 64 --algo chain -b 1G --segment 1M --window 64
  allfold simulate all_reduce --topology nodes8 --ranks 64 -b 64M --fault slow_link=nic_out[0]:x10
  allfold simulate all_reduce --topology cluster.toml --ranks 16 -b 1M --trace step.json
  allfold simulate all_reduce --topology hgx-h100 --ranks 1024 --algo nccl --nccl-algo tree -b 8 -e 1G -f 8
  allfold simulate all_reduce --topology dgx-a100 --ranks 64 --algo ring,double_binary_tree,nccl -b 1K -e 1G -f 4 --plot s.svg

--algo nccl simulates the algorithm, protocol and channels that NCCL would choose on the machine.

--explain follows the messages that wait for each other, from the last rank's end back to the first launch. The parts of their time:
  launch     each rank's time before its first message
  overhead   the sender's time for each message, before its first byte
  bandwidth  the bytes, each message alone on the slowest link of its path
  sharing    the additional time of the bytes because messages share a link
  latency    from the last byte to the arrival
  memory     the ranks' own work on arrived data: reductions and copies
  faults     what --fault adds to all of these: slower ranks and links, links that are down, ranks that are stopped or cut off
`waiting for rank 3 -> 4` is the time in which these messages travel from rank 3 to rank 4, and the last rank waits for them.

A topology is switch, ring, mesh, nodes8, nodesK, nodesKxM (K devices and M NICs per node), a machine such as
dgx-a100:16 or hgx-h100,fat-tree=2:1 (`allfold machines` lists them), or a TOML, XML or YAML file.

Faults; each may end in a time span, such as @5ms..20ms:
{}", kinds()))]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    /// The machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T")]
    topology: String,
    /// Simulate every rank (full), or one rank per symmetry class (by_symmetry); auto takes the fastest exact engine
    #[arg(long, value_parser = names::one_of(ENGINES), default_value = "auto", help_heading = "Simulation")]
    engine: Engine,
    /// How messages share a link: max-min fair, split equally, or one message at a time (serial_links, for pipelines of
    /// too many messages to simulate sharing)
    #[arg(long, value_parser = names::one_of(SHARING), default_value = "split", help_heading = "Simulation")]
    sharing: LinkSharing,
    /// With --engine by_symmetry: round chunks up to equal sizes (recorded as `rounded_up`)
    #[arg(long, help_heading = "Simulation")]
    round_up: bool,
    /// Inject a fault, as in the list below; may be given again
    #[arg(long, value_name = "RULE", help_heading = "Faults")]
    fault: Vec<String>,
    /// Seed of the random draws of faults, 0 to 2^64 - 1
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Faults")]
    seed: u64,
    /// Fail the collective after this virtual time, 1ps to 18446744s, such as 20ms [default: none; 300s with a fault that can hang it]
    #[arg(long, value_name = "TIME", value_parser = span_of, help_heading = "Faults")]
    deadline: Option<Picos>,
    /// Run this many channels, 1 to 1024, in parallel, each on its share of the data; --window applies to each channel
    #[arg(long, value_name = "LANES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Simulation")]
    lanes: u32,
    /// Print where the time went, in words that this help explains below. Takes one size and simulates every rank
    #[arg(long, help_heading = "Simulation")]
    explain: bool,
    /// Draw the messages of ranks and links into an SVG file. Takes one size and simulates every rank
    #[arg(long, value_name = "FILE", value_parser = allfold_cli::files::svg(), help_heading = "Simulation")]
    timeline: Option<PathBuf>,
    /// Write a Chrome trace of every message. Takes one size and simulates every rank
    #[arg(long, value_name = "FILE", help_heading = "Simulation")]
    trace: Option<PathBuf>,
    /// Draw bus bandwidth over sizes, a curve for each algorithm, into an SVG file. Takes three sizes or more
    #[arg(long, value_name = "FILE", value_parser = allfold_cli::files::svg(), help_heading = "Simulation")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    nccl: NcclArgs,
    #[command(flatten)]
    common: Common,
}

const ENGINES: [(&str, Engine); 3] =
    [("full", Engine::Full), ("by_symmetry", Engine::BySymmetry), ("auto", Engine::Auto)];
const SHARING: [(&str, LinkSharing); 3] = [
    ("max_min", LinkSharing::Flows(Sharing::MaxMin)),
    ("split", LinkSharing::Flows(Sharing::Split)),
    ("serial_links", LinkSharing::Serial),
];

/// Simulates the collective at every size by every algorithm, prints a table for each and draws the plot.
pub fn run(args: &Args) -> CommandResult {
    let sweeps = args.sweep.each()?;
    let by_nccl = |sweep: &&SweepArgs| sweep.algo.as_deref() == Some(nccl::NAME);
    refuse_mixtures(args, &sweeps, sweeps.iter().filter(by_nccl).count())?;
    // Everything is checked before the first algorithm runs.
    if args.plot.is_some() {
        sweeps.iter().try_for_each(|sweep| plot::can_draw(&sweep.sizes()?))?;
    }
    let calls = sweeps.iter().map(|sweep| Call::new(args, sweep)).collect::<CommandResult<Vec<_>>>()?;
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    let files = args.trace.iter().chain(&args.timeline).chain(&args.plot);
    files.into_iter().try_for_each(|path| output.will_write(path))?;
    output.check_text()?;
    let mut records = Vec::new();
    for (at, (sweep, call)) in sweeps.iter().zip(&calls).enumerate() {
        if at > 0 {
            output.say("")?;
        }
        records.extend(match call {
            Call::Nccl(machine) => nccl::run(sweep, &args.topology, machine, &mut output)?,
            Call::Own(choice, machine) => own(args, sweep, choice, machine, &mut output)?,
        });
    }
    if let Some(path) = &args.plot {
        plot::simulated(path, &records, &mut output)?;
    }
    output.close()
}

/// One algorithm's call, checked and ready to be timed.
enum Call {
    /// By an algorithm of this project.
    Own(Box<Choice>, Box<SimulatedMachine>),
    /// As NCCL would run it.
    Nccl(Box<NcclMachine>),
}

impl Call {
    fn new(args: &Args, sweep: &SweepArgs) -> CommandResult<Call> {
        if sweep.algo.as_deref() == Some(nccl::NAME) {
            return Ok(Call::Nccl(Box::new(nccl::machine(sweep, &args.topology, &args.nccl)?)));
        }
        known(sweep)?;
        let choice = Choice { lanes: args.lanes, ..sweep.choice()? };
        if let Some(algorithm) = choice.algorithm {
            proved::warn_if_wrong(algorithm, sweep.ranks);
        }
        let sizes = sweep.sizes()?;
        one_size(args, &sizes)?;
        let machine = machine(args)?;
        sizes.iter().try_for_each(|&size| machine.countable(&machine.plan(&choice, size)?))?;
        if args.trace.is_some() || args.timeline.is_some() {
            traceable(&machine, &choice, &sizes)?;
        }
        Ok(Call::Own(Box::new(choice), Box::new(machine)))
    }
}

/// Refuses an algorithm that neither the registry nor NCCL has; the error lists and suggests NCCL's name too.
fn known(sweep: &SweepArgs) -> CommandResult {
    let Some(name) = &sweep.algo else { return Ok(()) };
    let Err(mut error) = registry::find(sweep.collective, name) else { return Ok(()) };
    if let registry::Error::Algorithm { known, .. } = &mut error
        && NcclMachine::covers(sweep.collective).is_ok()
    {
        known.push(nccl::NAME);
    }
    Err(CommandError::usage(error))
}

/// Simulates one algorithm of this project at every size.
fn own(
    args: &Args,
    sweep: &SweepArgs,
    choice: &Choice,
    machine: &SimulatedMachine,
    output: &mut RunOutput,
) -> CommandResult<Vec<SimulatedCollective>> {
    let name = choice.collective.name();
    let sizes = sweep.sizes()?;
    // The heading is printed only above a first row: an engine may refuse the first size.
    let mut heading = Some(heading(args, sweep, name, machine));
    let (mut records, mut speeds, mut idle_faults) = (Vec::new(), Vec::new(), None::<Vec<String>>);
    for &size in &sizes {
        let algorithm = sweep.algo.as_deref().map_or(String::new(), |name| format!(" by {name}"));
        let spinner = progress::spinner(&format!("{name}{algorithm}, {}", format::bytes(size)));
        let timed = machine.time_and_idle_faults(choice, size);
        spinner.finish_and_clear();
        let (record, speed, idle) = timed?;
        // A rule is without effect if it is at every size.
        idle_faults.get_or_insert_with(|| idle.clone()).retain(|note| idle.contains(note));
        if let Some(lines) = heading.take() {
            output.say(lines)?;
        }
        // A schedule reads its input in place, so the in-place and the out-of-place call take equal time.
        output.say(table::simulated_row(&record, &record))?;
        output.record(&record)?;
        output.record(&speed)?;
        speeds.push((record.stepped(), speed));
        records.push(record);
    }
    let busbw: Vec<f64> = records.iter().map(|record| record.busbw_gbps).collect();
    output.say(table::footer(name, None, &busbw))?;
    idle_faults.into_iter().flatten().for_each(|note| tracing::info!("{note}"));
    if let (Some(path), [size]) = (&args.trace, &*sizes) {
        let messages = machine.messages(choice, *size)?;
        trace::messages(path, &messages)?;
        output.say(format!("# Trace of {} messages: {}", messages.len(), path.display()))?;
    }
    if let ([size], true) = (&*sizes, args.explain || args.timeline.is_some()) {
        explained(args, machine, choice, *size, output)?;
    }
    for line in engine_lines(&speeds) {
        output.say(line)?;
    }
    if let Some(record) = records.last().filter(|_| args.fault.is_empty() && args.lanes == 1) {
        beside_nccl(&args.topology, choice, record)?;
    }
    Ok(records)
}

/// A note with NCCL's bandwidth, where NCCL drives the machine and is much faster than one lane of this algorithm.
fn beside_nccl(topology: &str, choice: &Choice, record: &SimulatedCollective) -> CommandResult {
    const MUCH: f64 = 1.5;
    const MOST: u32 = 1024;
    let ranks = record.call.ranks;
    if ranks > MOST || Preset::with_options(topology).is_err() {
        return Ok(());
    }
    let Ok(machine) = NcclMachine::new(topology, ranks, NcclOptions::published()?) else { return Ok(()) };
    let Ok(timed) = machine.time(choice, record.call.bytes) else { return Ok(()) };
    let nccl = timed.record.busbw_gbps;
    if nccl > MUCH * record.busbw_gbps {
        let lanes = machine.setting.machine.nics.map_or(1, |nics| nics.count);
        let more = if lanes > 1 {
            format!("; --lanes {lanes} runs a lane for each NIC of a node")
        } else {
            String::new()
        };
        tracing::info!(
            "{} runs on one lane here, as one of NCCL's channels: NCCL's own choice has a busbw of {} GB/s at {} (--algo nccl){more}",
            record.call.algorithm,
            format::number(nccl),
            format::bytes(record.call.bytes)
        );
    }
    Ok(())
}

/// Refuses flags that a call by NCCL, or several algorithms at once, do not take.
fn refuse_mixtures(args: &Args, sweeps: &[SweepArgs], by_nccl: usize) -> CommandResult {
    if by_nccl == 0 && args.nccl.any() {
        return Err(CommandError::usage(
            "--nccl-algo, --nccl-proto, --nccl-version, --collnet, --parameters and --without go with --algo nccl",
        ));
    }
    let one_call = [
        ("--explain", args.explain),
        ("--timeline", args.timeline.is_some()),
        ("--trace", args.trace.is_some()),
    ];
    let faults = [("--fault", !args.fault.is_empty()), ("--deadline", args.deadline.is_some())];
    let own = [
        ("--engine", args.engine != Engine::Auto),
        ("--sharing serial_links", args.sharing == LinkSharing::Serial),
        ("--round-up", args.round_up),
        ("--lanes", args.lanes != 1),
        ("--segment", args.sweep.segment.is_some()),
        ("--window", args.sweep.window.is_some()),
    ];
    let given =
        |flags: &[(&'static str, bool)]| flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
    let of_own = given(&one_call).or(given(&faults));
    // If --algo names other algorithms too, the flags of Allfold's own engines apply to those.
    let of_own = if sweeps.len() == by_nccl { of_own.or(given(&own)) } else { of_own };
    if let Some(flag) = of_own.filter(|_| by_nccl > 0) {
        return Err(CommandError::usage(format!(
            "{flag} goes with Allfold's own algorithms; leave it out with --algo nccl"
        )));
    }
    match given(&one_call).filter(|_| sweeps.len() > 1) {
        Some(flag) => Err(CommandError::usage(format!(
            "{flag} takes one algorithm and --algo has {}; give one",
            sweeps.len()
        ))),
        None => Ok(()),
    }
}

/// Refuses a sweep of several sizes with a flag that applies to a single call.
fn one_size(args: &Args, sizes: &[u64]) -> CommandResult {
    let flags = [
        ("--explain", args.explain),
        ("--trace", args.trace.is_some()),
        ("--timeline", args.timeline.is_some()),
    ];
    match flags.iter().find(|(_, given)| *given).filter(|_| sizes.len() != 1) {
        Some((flag, _)) => Err(CommandError::usage(format!(
            "{flag} takes one size and the sweep has {}; give -b and -e the same value",
            sizes.len()
        ))),
        None => Ok(()),
    }
}

/// The lines above the table of simulated times.
fn heading(args: &Args, sweep: &SweepArgs, name: &str, machine: &SimulatedMachine) -> String {
    let first = format!(
        "# allfold simulate {name}: {} of {}; simulated, all times are virtual",
        counted(sweep.ranks as usize, "rank"),
        args.topology
    );
    let second = format!("# {} sharing: {}", sweep.summary(), machine.sharing.name());
    let faults = args.fault.iter().map(|rule| format!("# fault: {rule}"));
    let lines = [first, second].into_iter().chain(faults);
    lines.chain(["#".to_string(), table::simulated_header()]).collect::<Vec<_>>().join("\n")
}

/// Prints and draws where the time of one size went.
fn explained(
    args: &Args,
    machine: &SimulatedMachine,
    choice: &Choice,
    size: u64,
    output: &mut RunOutput,
) -> CommandResult {
    let plan = machine.plan(choice, size)?;
    let explanation = time::explain(&machine.job(choice, &plan)).map_err(refused)?;
    if args.explain {
        critical_path::lines(&explanation, &machine.topology)
            .into_iter()
            .try_for_each(|line| output.say(line))?;
    }
    if let Some(path) = &args.timeline {
        let ranks = counted(args.sweep.ranks as usize, "rank");
        let (size, name) = (format::bytes(size), &machine.name);
        let caption = format!("{} of {size} over {ranks} of {name}, simulated", choice.collective);
        output::replace(
            path,
            critical_path::timeline(&explanation, &machine.topology, &caption)?.as_bytes(),
        )?;
        output.say(format!("# Timeline: {}", path.display()))?;
    }
    Ok(())
}

/// Parses a span of time on the command line, such as 20ms.
fn span_of(text: &str) -> Result<Picos, String> {
    let some = span(text).filter(|span| *span > Picos::ZERO);
    some.ok_or_else(|| "write a number above 0 and one of s, ms, us, ns, ps, such as 20ms".into())
}

/// Every kind of fault rule, as lines of the help text.
fn kinds() -> String {
    let kind = |kind: &FaultKind| format!("  {:34} {}", kind.example, kind.about);
    KINDS.iter().map(kind).collect::<Vec<_>>().join("\n")
}

/// Refuses a trace of more messages than fit in memory.
fn traceable(machine: &SimulatedMachine, choice: &Choice, sizes: &[u64]) -> CommandResult {
    let each = 200 + size_of::<Sent>() as u64;
    for size in sizes {
        let (record, _) = machine.time(choice, *size)?;
        let bytes = record.messages.unwrap_or(0).checked_mul(each);
        memory::require(bytes, "the messages of the trace")?;
    }
    Ok(())
}

fn machine(args: &Args) -> CommandResult<SimulatedMachine> {
    if args.round_up && args.engine != Engine::BySymmetry {
        return Err(CommandError::usage(
            "--round-up goes with --engine by_symmetry; the other engines take chunks of unequal size",
        ));
    }
    let mut machine = SimulatedMachine::named(&args.topology, args.sweep.ranks)?;
    machine.faults = Faults::parse(args.fault.iter().map(String::as_str), &machine.topology)
        .map_err(CommandError::usage)?;
    machine.faults = machine.faults.seeded(args.seed);
    machine.rules = args.fault.clone();
    machine.deadline = args.deadline.or((!machine.faults.is_steady()).then_some(HANG_TIMEOUT));
    machine.sharing = args.sharing;
    machine.engine = if args.round_up { Engine::BySymmetryRounded } else { args.engine };
    Ok(machine)
}

/// One line for each algorithm and simulation engine: the number of timed messages, and messages per second of real time.
fn engine_lines(speeds: &[(String, SimulatorSpeed)]) -> Vec<String> {
    let groups = speeds.chunk_by(|(a, s), (b, t)| a == b && s.algorithm == t.algorithm);
    let lines = groups.map(|group| {
        let (stepped, first) = &group[0];
        let messages: u64 = group.iter().map(|(_, speed)| speed.messages).sum();
        let wall: f64 = group.iter().map(|(_, speed)| speed.wall_s).sum();
        let rate = messages as f64 / wall.max(1e-9) / 1e6;
        format!(
            "# Algorithm {}, engine {stepped}: {messages} messages in {wall:.3} s of real time, {rate:.2} million messages/s",
            first.algorithm
        )
    });
    lines.collect()
}
