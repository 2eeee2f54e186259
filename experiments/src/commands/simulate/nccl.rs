//! `simulate --algo nccl`: a call as NCCL would run it on a machine: its choice, laid over the nodes, simulated.
//!
//! ```text
//! machine --> NCCL's tuner: algorithm, protocol, channels --> schedule over nodes --> simulated on links
//!                   ^                                                                       ^
//!      --nccl-algo, --nccl-proto, or NCCL_ALGO, NCCL_PROTO          parameters fitted to published runs
//! ```
//!
//! `validate --predictor simulated` does the same for a row of a run. All channels of a call are alike, so that one schedule
//! is simulated, on links that carry the messages of all channels.

use crate::call::sweep::SweepArgs;
use crate::call::table;
use crate::commands::validate::parameters;
use crate::predict::nccl::{NcclMachine, NcclOptions, NcclTimed};
use allfold_base::on_all_cores;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_nccl_model::physics::{ModelTerm, Setting, Terms};
use allfold_nccl_model::{Library, Overrides};
use allfold_report::format::counted;
use allfold_report::records::SimulatedCollective;
use std::path::PathBuf;
use std::time::Instant;

/// Flags that go with `--algo nccl`.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "NCCL (--algo nccl)")]
pub struct NcclArgs {
    /// Algorithms that NCCL may choose, written as in NCCL_ALGO: `tree`, `^nvls`, `ring;allreduce:tree` [default: NCCL_ALGO]
    #[arg(long, value_name = "LIST")]
    nccl_algo: Option<String>,
    /// Protocols that NCCL may choose, written as in NCCL_PROTO: `LL128,Simple` [default: NCCL_PROTO]
    #[arg(long, value_name = "LIST")]
    nccl_proto: Option<String>,
    /// NCCL's version
    #[arg(long, value_name = "M.N", value_parser = version)]
    nccl_version: Option<(u32, u32)>,
    /// The network's switches may reduce (SHARP), as with NCCL_COLLNET_ENABLE=1
    #[arg(long)]
    collnet: bool,
    /// Parameters that `calibrate` wrote [default: those that ship with Allfold]
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    /// Leave a term out of the model; may be given again
    #[arg(long, value_name = "TERM", value_parser = ModelTerm::named)]
    without: Vec<ModelTerm>,
}

/// What the three times of a size are.
const LEGEND: &str = "# Three predictions. Table: the call's messages simulated on the machine's links. physical: the longest chain and the narrowest link of
# these messages, fitted to published runs; README's table of accuracy is about this one. closed-form: the estimate of NCCL's own tuner, unfitted.
# In brackets: intervals of the table's time, from published systems that each took no part in the fit.";

/// The newest version whose rules the model has.
const NEWEST: (u32, u32) = (2, 29);

/// The name in `--algo` that selects NCCL's own choice.
pub const NAME: &str = "nccl";

impl NcclArgs {
    /// Whether any flag of NCCL was given.
    pub fn any(&self) -> bool {
        let texts = [&self.nccl_algo, &self.nccl_proto].into_iter().any(Option::is_some);
        texts
            || self.nccl_version.is_some()
            || self.collnet
            || self.parameters.is_some()
            || !self.without.is_empty()
    }

    fn overrides(&self) -> CommandResult<Overrides> {
        let set = |flag: &Option<String>, name: &str| {
            flag.clone().or_else(|| std::env::var(name).ok()).unwrap_or_default()
        };
        Overrides::new(&set(&self.nccl_algo, "NCCL_ALGO"), &set(&self.nccl_proto, "NCCL_PROTO"))
            .map_err(CommandError::usage)
    }

    fn library(&self) -> Library {
        let usual = Library::default();
        Library { version: self.nccl_version.unwrap_or(usual.version), collnet: self.collnet, ..usual }
    }
}

fn version(text: &str) -> Result<(u32, u32), String> {
    let numbers: Option<Vec<u32>> = text.split('.').take(2).map(|part| part.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[major, minor]) => Ok((major, minor)),
        _ => Err("write major and minor, such as 2.26".into()),
    }
}

/// NCCL on the machine that the flags name.
///
/// # Errors
/// An unknown machine, or one with another number of ranks; flags that leave NCCL no algorithm or protocol; a collective that
/// the model does not cover.
pub fn machine(sweep: &SweepArgs, topology: &str, args: &NcclArgs) -> CommandResult<NcclMachine> {
    NcclMachine::covers(sweep.collective)?;
    if let Some((major, minor)) = args.nccl_version.filter(|version| *version > NEWEST) {
        tracing::info!(
            "NCCL {major}.{minor} is newer than NCCL 2.29, whose rules are the newest that are known and are used"
        );
    }
    let file = parameters(args.parameters.as_deref())?;
    let options = NcclOptions {
        overrides: args.overrides()?,
        library: args.library(),
        parameters: file.parameters(),
        spreads: file.spreads(),
        terms: args.without.iter().fold(Terms::default(), |terms, term| terms.without(*term)),
    };
    NcclMachine::new(topology, sweep.ranks, options)
}

/// Simulates NCCL's call at every size and prints the table.
///
/// # Errors
/// A schedule that cannot be timed.
pub fn run(
    sweep: &SweepArgs,
    topology: &str,
    machine: &NcclMachine,
    output: &mut RunOutput,
) -> CommandResult<Vec<SimulatedCollective>> {
    let collective = sweep.collective;
    output.say(heading(sweep, topology, &machine.setting))?;
    let choice = SweepArgs { algo: None, ..sweep.clone() }.choice()?;
    let (mut lines, mut records) = (Vec::new(), Vec::new());
    let sizes: Vec<(usize, u64)> = sweep.sizes()?.into_iter().enumerate().collect();
    let bar = progress::bar(sizes.len() as u64, &format!("{} by NCCL, sizes", collective.name()));
    #[allow(clippy::disallowed_methods, reason = "the simulator's own speed is measured")]
    let start = Instant::now();
    on_all_cores(
        &sizes,
        |&size| machine.time(&choice, size),
        |timed| -> CommandResult {
            let NcclTimed { record, line } = timed?;
            bar.inc(1);
            output.say(table::simulated_row(&record, &record))?;
            output.record(&record)?;
            lines.push(line);
            records.push(record);
            Ok(())
        },
    )?;
    let wall_s = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let busbw: Vec<f64> = records.iter().map(|record| record.busbw_gbps).collect();
    output.say(table::footer(collective.name(), None, &busbw))?;
    output.say(LEGEND)?;
    lines.into_iter().try_for_each(|line| output.say(line))?;
    let messages: u64 = records.iter().filter_map(|record| record.messages).sum();
    output.say(format!("# {messages} messages in {wall_s:.3} s of real time"))?;
    Ok(records)
}

/// The lines above the table of NCCL's simulated times.
fn heading(sweep: &SweepArgs, topology: &str, setting: &Setting) -> String {
    let Setting { machine, platform, .. } = setting;
    let graph = |name: &str, graph: &allfold_nccl_model::Graph| {
        format!("{name} {} channels of {:.1} GB/s", graph.channels, graph.inside)
    };
    let mut graphs = vec![graph("ring", &platform.ring), graph("tree", &platform.tree)];
    graphs.extend(platform.nvls.iter().map(|nvls| graph("NVLS", nvls)));
    let network = machine.nics.map_or(String::new(), |nics| {
        format!(", {} NICs of {} Gb/s {} a node", nics.count, nics.gbit_per_s, nics.fabric)
    });
    let lines = [
        format!(
            "# allfold simulate {}: {} of {topology} as NCCL runs them; simulated, all times are virtual",
            sweep.collective.name(),
            counted(sweep.ranks as usize, "rank")
        ),
        format!("# {} x {} {}{network}", machine.nodes, machine.devices, machine.gpu.name),
        format!("# found by NCCL's search: {}", graphs.join("; ")),
    ];
    let assumed = machine.assumed.iter().map(|line| format!("# assumed: {line}"));
    let ends = [format!("# {}", sweep.summary()), "#".into(), table::simulated_header()];
    lines.into_iter().chain(assumed).chain(ends).collect::<Vec<_>>().join("\n")
}
