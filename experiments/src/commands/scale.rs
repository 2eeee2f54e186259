//! `allfold scale`: the scaling curve of a training run, measured where the ranks exist, simulated where they do not.

use super::bench::cores;
use crate::call::table;
use crate::cli::common::Common;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::memory;
use crate::cli::session::{self, Session};
use crate::scaling::points::{Scaling, measured_efficiency, simulated_efficiency};
use crate::scaling::published as throughput;
use crate::scaling::workload::{self, Collectives, WorkloadScaling, thinned};
use crate::scaling::{collective as collective_scaling, explain};
use crate::training::config;
use allfold_report::plots::{Axis, Curves, Ideal, Origin, Point, Series};
use allfold_report::records::{MeasuredScale, SimulatedScale};
use allfold_report::sizes::RankCounts;
use allfold_sim::Device;
use allfold_trainer::modeled::Terms;
use allfold_trainer::workloads::{Accelerator, Precision, Workload};
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::path::{Path, PathBuf};

/// Flags of `scale`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold scale --config experiments/configs/digits-cnn.toml --ranks 1,2,4,8,64,1024
  allfold scale --config experiments/configs/digits-cnn.toml --ranks 1..4 --topology switch --html scaling.html
  allfold scale --workload resnet50 --topology dgx-a100 --ranks 1..131072 --batch 256 --amp
  allfold scale --workload gpt2-xl --topology hgx-h100,fat-tree=2:1 --ranks 1..4096 --strong --batch 4096 --amp
  allfold scale --collective all_reduce --algo ring,double_binary_tree --lanes 16 --ranks 1..131072 --plot curve.svg
  allfold scale --against tables/*.json --rows
  allfold scale --explain all

Measured: threads of this machine, for as many ranks as it has cores. sim: real arithmetic on the virtual clock, for
up to --carry ranks. modeled: shapes, FLOPs and bytes alone, for every rank count. Efficiency is throughput over that of as
many single ranks of the same kind.")]
pub struct Args {
    /// The configuration, a TOML file
    #[arg(long, value_name = "FILE", required_unless_present_any = ["workload", "against", "explain", "collective"], conflicts_with_all = ["workload", "against", "explain", "collective"])]
    config: Option<PathBuf>,
    /// Rank counts, such as 1,2,4,8,64; of a long range the curve of a workload or a collective takes the powers of two
    #[arg(long, value_name = "COUNTS", required_unless_present_any = ["against", "explain"])]
    ranks: Option<RankCounts>,
    #[command(flatten)]
    large: Large,
    #[command(flatten)]
    call: collective_scaling::Call,
    /// The simulated machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T", default_value = "nodes8")]
    topology: String,
    /// What each of its ranks computes on
    #[arg(long, value_name = "D", default_value = "a100_f32")]
    device: String,
    /// Steps of each measured or carried run
    #[arg(long, value_name = "STEPS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// Carry real arithmetic on the virtual clock up to this many ranks
    #[arg(long, value_name = "N", default_value_t = 4)]
    carry: u32,
    /// Neither measure nor carry: only model
    #[arg(long)]
    modeled_only: bool,
    /// Write the curves as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// A large network from its layer table, and published tables.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Large networks")]
struct Large {
    /// Predict a network from its layer table: resnet18, resnet34, resnet50, vgg16, bert-base, bert-large, gpt2, gpt2-medium,
    /// gpt2-large, gpt2-xl
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Samples per rank and step; with --strong, of all ranks
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    batch: u64,
    /// Keep the batch of all ranks: each has its share
    #[arg(long, conflicts_with = "weak")]
    strong: bool,
    /// Keep the batch of each rank (as without)
    #[arg(long)]
    weak: bool,
    /// Half precision on tensor cores, f32 gradients
    #[arg(long, conflicts_with = "tf32")]
    amp: bool,
    /// TF32 products
    #[arg(long)]
    tf32: bool,
    /// Micro-batches of a step, exchanged once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    accumulate: u64,
    /// Batch norms over the samples of all ranks
    #[arg(long)]
    sync_batch_norm: bool,
    /// What each rank computes on, where it is not the machine's own GPU
    #[arg(long, value_name = "GPU")]
    accelerator: Option<String>,
    /// Samples per second that were measured on one GPU; kernels are stretched to meet it
    #[arg(long, value_name = "RATE")]
    measured: Option<f64>,
    /// What times the exchanges
    #[arg(long, value_enum, default_value = "simulated")]
    collectives: Collectives,
    /// Standard deviation of the devices' speed, as a share of a step; all wait for the slowest
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    spread: f64,
    /// Standard deviation of a host's lateness in a step, in microseconds; all wait for the latest
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    jitter: f64,
    /// Samples per second that the CPUs of a node prepare
    #[arg(long, value_name = "RATE")]
    input_rate: Option<f64>,
    /// Hold predictions against published tables of throughput (JSON), from their rows of one GPU
    #[arg(long, value_name = "TABLE", num_args = 1.., conflicts_with_all = ["workload", "explain"])]
    against: Vec<PathBuf>,
    /// With --against: leave a term out (communication, spread, jitter); may be given again
    #[arg(long, value_name = "TERM", requires = "against")]
    without: Vec<String>,
    /// With --against: print every row
    #[arg(long, requires = "against")]
    rows: bool,
    /// With --against, --workload or --collective: draw into an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Explain a small published table: resnet34, a100, data-parallel or all
    #[arg(long, value_name = "NAME", conflicts_with = "workload")]
    explain: Option<String>,
}

/// The flags that say what is scaled: each is a mode.
const MODES: [&str; 5] = ["against", "explain", "collective", "workload", "config"];

/// Flags that only some modes look at, with these.
const FLAGS: [(&[&str], &[&str]); 7] = [
    (&["config", "workload", "collective"], &["ranks", "topology"]),
    (&["config", "workload"], &["html"]),
    (&["config"], &["device", "steps", "carry", "modeled_only"]),
    (
        &["workload"],
        &[
            "batch",
            "strong",
            "weak",
            "amp",
            "tf32",
            "accumulate",
            "sync_batch_norm",
            "accelerator",
            "measured",
            "collectives",
            "spread",
            "jitter",
            "input_rate",
        ],
    ),
    (&["collective"], &["algo", "size", "lanes", "segment"]),
    (&["against"], &["without", "rows"]),
    (&["against", "workload", "collective"], &["plot"]),
];

/// Refuses what the mode does not look at.
fn check(given: &ArgMatches) -> Outcome {
    let said = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let flag = |id: &str| format!("--{}", id.replace('_', "-"));
    let Some(mode) = MODES.into_iter().find(|mode| said(mode)) else { return Ok(()) };
    let others = FLAGS.iter().filter(|(modes, _)| !modes.contains(&mode));
    let unseen = others.flat_map(|(modes, flags)| flags.iter().map(move |id| (modes, id)));
    let Some((modes, id)) = unseen.into_iter().find(|(_, id)| said(id)) else { return Ok(()) };
    let modes: Vec<String> = modes.iter().map(|mode| flag(mode)).collect();
    Err(Failure::usage(format!(
        "{} goes with {}; with {} it says nothing: leave it out",
        flag(id),
        modes.join(" and "),
        flag(mode)
    )))
}

/// Measures and predicts every point, prints a table of each kind; `given` is the command line.
pub fn run(args: &Args, given: &ArgMatches) -> Outcome {
    check(given)?;
    if !args.large.against.is_empty() {
        let mut session = Session::open(args.common.json.as_deref(), None)?;
        let options = throughput::Options {
            without: args.large.without.clone(),
            rows: args.large.rows,
            plot: args.large.plot.clone(),
        };
        throughput::run(&args.large.against, &options, &mut session)?;
        return session.close();
    }
    if let Some(name) = &args.large.explain {
        let mut session = Session::open(args.common.json.as_deref(), None)?;
        explain::run(name, &mut session)?;
        return session.close();
    }
    let counts = args.ranks.clone().unwrap_or(RankCounts(vec![1]));
    if let Some(collective) = args.call.collective {
        let mut session = Session::open(args.common.json.as_deref(), None)?;
        let plot = args.large.plot.as_deref();
        collective_scaling::run(&args.call, collective, &args.topology, &counts, plot, &mut session)?;
        return session.close();
    }
    if let Some(name) = &args.large.workload {
        return network(args, name, &counts);
    }
    let Some(config) = &args.config else {
        return Err(Failure::usage("what is to be scaled? give --config FILE or --workload NAME"));
    };
    let mut config = config::read(config)?;
    config.max_steps = args.steps;
    // As many passes over the data as the steps need, on any number of ranks.
    config.epochs = args.steps;
    let device = Device::named(&args.device).map_err(Failure::usage)?;
    let scaling = Scaling::new(config, args.topology.clone(), device);
    scaling.check(&counts)?;
    memory::threads(args.carry)?;
    let mut session = Session::open(args.common.json.as_deref(), Some(scaling.config.seed))?;
    args.html.iter().try_for_each(|path| session.will_write(path))?;
    let measured_up_to = if args.modeled_only { 0 } else { cores() };
    let carried_up_to = if args.modeled_only { 0 } else { args.carry };
    points(&scaling, &counts, measured_up_to, carried_up_to, None, &mut session)?;
    if let Some(path) = &args.html {
        let page = allfold_report::render(&session.records()?, session.stamp())?;
        session::replace(path, page.page.as_bytes())?;
        session.say(format!("\nplot: {}", path.display()))?;
    }
    session.close()
}

/// The curve of a large network.
fn network(args: &Args, name: &str, counts: &RankCounts) -> Outcome {
    let large = &args.large;
    let accelerator = match &large.accelerator {
        Some(name) => Accelerator::named(name).map_err(Failure::usage)?,
        None => {
            let gpu = workload::machine(&args.topology).map(|preset| preset.gpu);
            Accelerator::named(gpu.as_deref().unwrap_or("A100 SXM")).map_err(Failure::usage)?
        }
    };
    let sane = |what: &str, value: f64| match value.is_finite() && (0.0..=1e12).contains(&value) {
        true => Ok(value),
        false => Err(Failure::usage(format!("{what} {value} is no such number; give 0 or more"))),
    };
    let positive = |what: &str, value: f64| match value > 0.0 {
        true => sane(what, value),
        false => Err(Failure::usage(format!("{what} {value}: give samples per second, more than 0"))),
    };
    let node = workload::machine(&args.topology).map_or(8, |preset| preset.devices);
    let scaling = WorkloadScaling {
        workload: Workload::named(name).map_err(Failure::usage)?,
        topology: args.topology.clone(),
        accelerator,
        precision: match (large.amp, large.tf32) {
            (true, _) => Precision::Half,
            (_, true) => Precision::Tf32,
            _ => Precision::F32,
        },
        batch: usize::try_from(large.batch).map_err(Failure::usage)?,
        strong: large.strong,
        accumulate: usize::try_from(large.accumulate).map_err(Failure::usage)?,
        sync_batch_norm: large.sync_batch_norm,
        measured: large.measured.map(|rate| positive("--measured", rate)).transpose()?,
        terms: Terms {
            spread: sane("--spread", large.spread)?,
            jitter_us: sane("--jitter", large.jitter)?,
            input: large.input_rate.map(|rate| positive("--input-rate", rate)).transpose()?,
            node,
            ..Terms::NONE
        },
        collectives: large.collectives,
    };
    let mut session = Session::open(args.common.json.as_deref(), None)?;
    args.html.iter().chain(&large.plot).try_for_each(|path| session.will_write(path))?;
    let counts = thinned(&counts.0);
    let counts = if counts.contains(&1) { counts } else { [vec![1], counts].concat() };
    let mut points: Vec<SimulatedScale> = Vec::new();
    for &ranks in &counts {
        match scaling.point(ranks)? {
            Some(point) => points.push(point),
            None => {
                let batch = scaling.batch;
                session.say(format!(
                    "{ranks} ranks and more leave some of {batch} samples none: the curve ends there"
                ))?;
                break;
            }
        }
    }
    simulated_efficiency(&mut points);
    let kind = if scaling.strong { "strong" } else { "weak" };
    let Some(first) = points.first() else { return session.close() };
    session.say(format!(
        "{} on {}: {kind} scaling, modeled; a sample is {}",
        first.model,
        first.topology,
        scaling.workload.sample()
    ))?;
    let rows = points.iter().map(|p| row(p.ranks, p.time_us, p.exposed_us, p.samples_per_s, p.efficiency));
    session.say(columns(rows.collect()))?;
    let engines: std::collections::BTreeSet<&str> =
        points.iter().flat_map(|point| point.engines.iter().map(String::as_str)).collect();
    if !engines.is_empty() {
        session.say(format!("exchanges timed by: {}", engines.into_iter().collect::<Vec<_>>().join("; ")))?;
    }
    points.iter().try_for_each(|point| session.record(point))?;
    if let Some(path) = &large.plot {
        draw(&points, kind, path)?;
    }
    if let Some(path) = &args.html {
        let page = allfold_report::render(&session.records()?, session.stamp())?;
        session::replace(path, page.page.as_bytes())?;
        session.say(format!("\nplot: {}", path.display()))?;
    }
    session.close()
}

/// Throughput over ranks, with the ideal line.
fn draw(points: &[SimulatedScale], kind: &str, path: &Path) -> Outcome {
    let Some(first) = points.first() else { return Ok(()) };
    let ideal =
        |ranks: u32| (f64::from(ranks), f64::from(ranks) * first.samples_per_s / f64::from(first.ranks));
    let whole = |value: f64| format!("{value:.0}");
    let curves = Curves {
        label: format!("{kind} scaling of {}", first.model),
        x: Axis { label: "ranks", log: Some(2), format: whole },
        y: Axis { label: "samples/s", log: Some(10), format: |value| format!("{value:.0e}") },
        series: vec![Series {
            name: format!("{} on {}", first.model, first.topology),
            origin: Origin::Simulated,
            points: points
                .iter()
                .map(|p| Point { x: f64::from(p.ranks), y: p.samples_per_s, error: 0.0 })
                .collect(),
        }],
        ideal: Some(Ideal { name: "ideal".into(), points: points.iter().map(|p| ideal(p.ranks)).collect() }),
    };
    let figure = curves.draw().map_err(Failure::run)?;
    session::replace(path, figure.file(&format!("{kind} scaling of {}, modeled", first.model)).as_bytes())
}

impl Scaling {
    /// Refuses what no point could be made of, before the first is.
    fn check(&self, ranks: &RankCounts) -> Outcome {
        if self.config.strategy == "single" && ranks.greatest() > 1 {
            return Err(Failure::usage(
                "the strategy single has 1 rank and no curve; set strategy = \"ddp\"",
            ));
        }
        self.modeled(1)?;
        // A clock for every rank and lane, and where each stands in its schedule.
        let most = u64::from(ranks.greatest());
        memory::require(most.checked_mul(256), &format!("the clocks of {most} ranks"))?;
        ranks.0.iter().try_for_each(|&ranks| {
            allfold_sim::Topology::named(&self.topology, ranks).map(drop).map_err(Failure::usage)
        })
    }
}

/// Every point of the curves as records, with a table of each kind. A curve always has its point of one rank: efficiency
/// is relative to it.
///
/// # Errors
/// A failed run.
pub fn points(
    scaling: &Scaling,
    ranks: &RankCounts,
    measured_up_to: u32,
    carried_up_to: u32,
    command: Option<&str>,
    session: &mut Session,
) -> Outcome {
    let counts: Vec<u32> = if ranks.0.contains(&1) { ranks.0.clone() } else { [&[1], &*ranks.0].concat() };
    let up_to = |most: u32| counts.iter().copied().filter(move |&ranks| ranks <= most);

    let mut measured: Vec<MeasuredScale> =
        up_to(measured_up_to).map(|ranks| scaling.measured(ranks)).collect::<Outcome<_>>()?;
    measured_efficiency(&mut measured);
    if !measured.is_empty() {
        session.say("measured on this machine, a thread per rank:")?;
        let rows =
            measured.iter().map(|p| row(p.ranks, p.time_us, p.exposed_us, p.samples_per_s, p.efficiency));
        session.say(columns(rows.collect()))?;
    }
    let mut carried: Vec<SimulatedScale> =
        up_to(carried_up_to).map(|ranks| scaling.carried(ranks)).collect::<Outcome<_>>()?;
    simulated_efficiency(&mut carried);
    let mut modeled: Vec<SimulatedScale> =
        counts.iter().map(|&ranks| scaling.modeled(ranks)).collect::<Outcome<_>>()?;
    simulated_efficiency(&mut modeled);
    for (points, how) in [(&carried, "real arithmetic on the virtual clock"), (&modeled, "modeled")] {
        let Some(first) = points.first() else { continue };
        session.say(format!("simulated on {}, {how}:", first.topology))?;
        let rows =
            points.iter().map(|p| row(p.ranks, p.time_us, p.exposed_us, p.samples_per_s, p.efficiency));
        session.say(columns(rows.collect()))?;
    }
    measured.iter().try_for_each(|point| session.record_as(point, command))?;
    carried.iter().chain(&modeled).try_for_each(|point| session.record_as(point, command))
}

fn row(ranks: u32, time_us: f64, exposed_us: f64, samples_per_s: f64, efficiency: f64) -> Vec<String> {
    vec![
        ranks.to_string(),
        format!("{time_us:.1}"),
        format!("{exposed_us:.1}"),
        format!("{samples_per_s:.0}"),
        format!("{:.1}", efficiency * 100.0),
    ]
}

fn columns(rows: Vec<Vec<String>>) -> String {
    let names = ["ranks", "step (us)", "exposed (us)", "samples/s", "efficiency (%)"];
    table::columns(&[vec![names.map(String::from).to_vec()], rows].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> clap::Command {
        <Args as clap::Args>::augment_args(clap::Command::new("scale"))
    }

    #[test]
    fn every_flag_is_of_a_mode() {
        let flags = FLAGS.iter().flat_map(|(_, flags)| flags.iter());
        let known: Vec<&str> = MODES.iter().chain(flags).copied().chain(["json", "help"]).collect();
        for arg in command().get_arguments() {
            let id = arg.get_id().as_str();
            assert!(known.contains(&id), "{id} is of no mode");
            assert_eq!(arg.get_long().map(|long| long.replace('-', "_")).as_deref(), Some(id));
        }
    }

    #[test]
    fn a_flag_of_another_mode_is_refused() {
        for (mode, flag, of) in [
            ("--config x --ranks 1", "--lanes 2", "--collective"),
            ("--config x --ranks 1", "--batch 64", "--workload"),
            ("--workload resnet18 --ranks 1", "--steps 20", "--config"),
            ("--collective all_reduce --algo ring --ranks 1", "--html x", "--config and --workload"),
            ("--against x", "--modeled-only", "--config"),
            ("--explain all", "--plot x", "--against and --workload"),
        ] {
            let line = format!("scale {mode}");
            assert_eq!(check(&command().get_matches_from(line.split(' '))), Ok(()), "{mode}");
            let line = format!("{line} {flag}");
            let Err(Failure::Usage(said)) = check(&command().get_matches_from(line.split(' '))) else {
                panic!("{mode}: {flag} is taken")
            };
            let flag = flag.split(' ').next().unwrap();
            assert!(said.contains(&format!("{flag} goes with {of}")), "{said}");
        }
    }
}
