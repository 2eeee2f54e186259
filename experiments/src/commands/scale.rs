//! `allfold scale`: the scaling curve of a training run, measured where the ranks exist, simulated where they do not.

use super::bench::cores;
use crate::cli::Common;
use crate::failure::{Failure, Outcome};
use crate::records::{MeasuredScale, SimulatedScale};
use crate::scaling::{Scaling, measured_efficiency, simulated_efficiency};
use crate::session::{self, Session};
use crate::sizes::RankCounts;
use crate::{memory, report, table, training};
use allfold_sim::Device;
use std::path::PathBuf;

/// Flags of `scale`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold scale --config experiments/configs/digits-cnn.toml --ranks 1,2,4,8,64,1024
  allfold scale --config experiments/configs/digits-cnn.toml --ranks 1..4 --topology switch --html scaling.html

Measured: threads of this machine, for as many ranks as it has cores. sim: real arithmetic on the virtual clock, for
up to --carry ranks. modeled: shapes, FLOPs and bytes alone, for every rank count. Efficiency is throughput over that of as
many single ranks of the same kind.")]
pub struct Args {
    /// The configuration, a TOML file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Rank counts, such as 1,2,4,8,64
    #[arg(long, value_name = "COUNTS")]
    ranks: RankCounts,
    /// The simulated machine: a built-in name or a TOML file
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

/// Measures and predicts every point, prints a table of each kind.
pub fn run(args: &Args) -> Outcome {
    let mut config = training::config(&args.config)?;
    config.max_steps = args.steps;
    // As many passes over the data as the steps need, on any number of ranks.
    config.epochs = args.steps;
    let scaling = Scaling {
        config,
        topology: args.topology.clone(),
        device: Device::named(&args.device).map_err(Failure::usage)?,
    };
    scaling.check(&args.ranks)?;
    memory::threads(args.carry)?;
    if let Some(path) = &args.html {
        session::writable(path)?;
    }
    let mut session = Session::open(args.common.json.as_deref(), Some(scaling.config.seed))?;
    let measured_up_to = if args.modeled_only { 0 } else { cores() };
    let carried_up_to = if args.modeled_only { 0 } else { args.carry };
    points(&scaling, &args.ranks, measured_up_to, carried_up_to, None, &mut session)?;
    if let Some(path) = &args.html {
        let page = report::render(&session.records()?, session.stamp())?;
        session::replace(path, page.page.as_bytes())?;
        session.say(format!("\nplot: {}", path.display()))?;
    }
    session.close()
}

impl Scaling {
    /// Refuses what no point could be made of, before the first is.
    fn check(&self, ranks: &RankCounts) -> Outcome {
        if self.config.strategy == "single" && ranks.greatest() > 1 {
            return Err(Failure::usage(
                "the strategy single has 1 rank and no curve; set strategy = \"ddp\"",
            ));
        }
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
