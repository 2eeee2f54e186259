//! `simulate --algo nccl`: a call as NCCL would run it on a machine: its choice, laid over the nodes, simulated.
//!
//! ```text
//! machine --> NCCL's tuner: algorithm, protocol, channels --> schedule over nodes --> simulated on links
//!                   ^                                                                       ^
//!      --nccl-algo, --nccl-proto, or NCCL_ALGO, NCCL_PROTO          parameters fitted to published runs
//! ```
//!
//! It is what `validate --predictor simulated` does for a row of a run. All channels of a call are alike, so that one
//! schedule stands for all, on links that carry them all.

use crate::call::plan;
use crate::call::sweep::SweepArgs;
use crate::call::table;
use crate::cli::error::{CommandError, CommandResult};
use crate::cli::output::RunOutput;
use crate::commands::validate::parameters;
use allfold_collectives::Collective;
use allfold_nccl_model::physics::{ModelTerm, Setting, Simulated, Terms, closed, simulated};
use allfold_nccl_model::{Library, Overrides, Platform};
use allfold_report::records::{CollectiveCall, SimulatedCollective};
use allfold_sim::machines::presets::Preset;
use allfold_sim::machines::{Description, Machine};
use allfold_validation::predict::Predictor;
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

/// The name in `--algo` that asks for NCCL's own choice.
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

/// Simulates NCCL's call at every size and prints the table.
///
/// # Errors
/// An unknown machine, or one with another number of ranks; flags that leave NCCL no algorithm or protocol.
pub fn run(sweep: &SweepArgs, topology: &str, args: &NcclArgs, output: &mut RunOutput) -> CommandResult {
    let machine = machine(topology, sweep.ranks)?;
    let collective = sweep.collective;
    let tuned = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
    ];
    if !tuned.contains(&collective) {
        return Err(CommandError::usage(format!(
            "NCCL's tuner does not cover {collective}, which NCCL composes of sends and receives"
        )));
    }
    let platform = Platform::of(&machine, sweep.ranks, args.library());
    let (terms, parameters) = (
        args.without.iter().fold(Terms::default(), |terms, term| terms.without(*term)),
        parameters(args.parameters.as_deref())?.parameters(),
    );
    let setting = Setting { machine, platform, overrides: args.overrides()?, driven: 1, host_stores: None };
    output.say(heading(sweep, topology, &setting))?;
    let choice = SweepArgs { algo: None, ..sweep.clone() }.choice()?;
    let (mut lines, mut busbw, mut messages, mut wall_s) = (Vec::new(), Vec::new(), 0, 0.0);
    for size in sweep.sizes()? {
        let (count, bytes) = choice.count(size);
        let case = setting.case(collective, bytes, false).map_err(CommandError::usage)?;
        #[allow(clippy::disallowed_methods, reason = "the simulator's own speed is measured")]
        let start = Instant::now();
        let found = simulated(&case, &parameters, terms).map_err(CommandError::run)?;
        wall_s += start.elapsed().as_secs_f64();
        messages += found.messages;
        let call = CollectiveCall {
            collective: collective.name().into(),
            algorithm: format!("NCCL {}/{}", case.algorithm, case.protocol),
            ranks: sweep.ranks,
            dtype: sweep.dtype.name().into(),
            op: collective.reduces().then(|| sweep.op.name().into()),
            root: collective.rooted().then_some(sweep.root),
            count,
            bytes,
            tree_hash: None,
            order_class: None,
        };
        let record = record(call, topology, &found, collective);
        output.say(table::simulated_row(&record, &record))?;
        output.record(&record)?;
        busbw.push(record.busbw_gbps);
        lines.push(format!(
            "# {bytes} B: {}/{}, {} of {} channels; {} {:.1} us, {} {:.1} us",
            case.algorithm,
            case.protocol,
            case.used,
            case.running,
            Predictor::Physical.name(),
            closed(&case, &parameters, terms),
            Predictor::ClosedForm.name(),
            case.tuner_us
        ));
    }
    output.say(table::footer(collective.name(), None, &busbw))?;
    lines.into_iter().try_for_each(|line| output.say(line))?;
    output.say(format!("# {messages} messages in {wall_s:.3} s of real time"))
}

fn record(
    call: CollectiveCall,
    topology: &str,
    found: &Simulated,
    collective: Collective,
) -> SimulatedCollective {
    let (algbw_gbps, busbw_gbps) = plan::bandwidths(collective, call.ranks, call.bytes, found.time_us);
    SimulatedCollective {
        backend: "sim".into(),
        call,
        topology: topology.into(),
        engine: found.method.map_or("closed_form", |method| method.name()).into(),
        sharing: "split".into(),
        window: found.window,
        segment: None,
        faults: Vec::new(),
        time_us: found.time_us,
        bound_us: found.bound_us,
        algbw_gbps,
        busbw_gbps,
        messages: (found.messages > 0).then_some(found.messages),
        rounded_up: false,
        merged_lanes: None,
        ranks_per_class: None,
        skipped_messages: Some(found.skipped).filter(|skipped| *skipped > 0),
        wrong_elements: None,
        checksum: None,
    }
}

/// The machine with this name, or the machine in a JSON file with a run's `hardware`.
fn machine(topology: &str, ranks: u32) -> CommandResult<Machine> {
    if !topology.to_ascii_lowercase().ends_with(".json") {
        return Preset::machine(topology, ranks).map_err(CommandError::usage);
    }
    let wrong = |error: &dyn std::fmt::Display| CommandError::usage(format!("{topology}: {error}"));
    let text = std::fs::read_to_string(topology).map_err(|error| wrong(&error))?;
    let words: Description = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    let machine = Machine::understand(&words).map_err(|error| wrong(&error))?;
    let all = u64::from(machine.devices) * u64::from(machine.nodes);
    match all == u64::from(ranks) {
        true => Ok(machine),
        false => Err(wrong(&format!("{all} GPUs, and --ranks {ranks}"))),
    }
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
            "# allfold simulate {}: {} ranks of {topology} as NCCL runs them; simulated, all times are virtual",
            sweep.collective.name(),
            sweep.ranks
        ),
        format!("# {} x {} {}{network}", machine.nodes, machine.devices, machine.gpu.name),
        format!("# found by NCCL's search: {}", graphs.join("; ")),
    ];
    let assumed = machine.assumed.iter().map(|line| format!("# assumed: {line}"));
    let ends = [format!("# {}", sweep.summary()), "#".into(), table::simulated_header()];
    lines.into_iter().chain(assumed).chain(ends).collect::<Vec<_>>().join("\n")
}
