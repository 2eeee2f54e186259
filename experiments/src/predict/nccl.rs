//! A call as NCCL would run it on a machine: its choice, laid over the nodes, simulated.
//!
//! ```text
//! machine --> NCCL's tuner: algorithm, protocol, channels --> schedule over nodes --> simulated on links
//! ```

use crate::call::plan::{self, Choice};
use crate::predict::machine::refused;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::Collective;
use allfold_nccl_model::physics::{Parameters, PhysicsCase, Setting, Simulated, Terms, closed, simulated};
use allfold_nccl_model::{Library, Overrides, Platform, TUNED};
use allfold_report::format::time;
use allfold_report::records::{CollectiveCall, SimulatedCollective};
use allfold_sim::files::{NcclTopology, is_node_file, refuse_foreign};
use allfold_sim::machines::presets::Preset;
use allfold_sim::machines::{Description, Machine};
use allfold_sim::{Topology, json_error, read_text_at_most};
use allfold_validation::file::ParameterFile;
use allfold_validation::predict::Predictor;
use allfold_validation::spread::{Spread, spread_of};
use std::path::Path;

/// How NCCL is set up.
pub struct NcclOptions {
    /// The algorithms and protocols that NCCL_ALGO and NCCL_PROTO allow.
    pub overrides: Overrides,
    /// NCCL's version, and whether switches reduce.
    pub library: Library,
    /// The fitted parameters.
    pub parameters: Parameters,
    /// The terms of the model.
    pub terms: Terms,
    /// The intervals of predictions.
    pub spreads: Vec<Spread>,
}

impl NcclOptions {
    /// NCCL with its defaults, with the parameters that ship with Allfold and all terms.
    ///
    /// # Errors
    /// The parameters cannot be read.
    pub fn published() -> CommandResult<NcclOptions> {
        let file = ParameterFile::published().map_err(CommandError::run)?;
        Ok(NcclOptions {
            overrides: Overrides::default(),
            library: Library::default(),
            parameters: file.parameters(),
            terms: Terms::default(),
            spreads: file.spread,
        })
    }
}

/// NCCL on a machine.
pub struct NcclMachine {
    /// The machine and NCCL's view of it.
    pub setting: Setting,
    topology: String,
    ranks: u32,
    options: NcclOptions,
}

/// One size of a call by NCCL.
pub struct NcclTimed {
    /// The record.
    pub record: SimulatedCollective,
    /// What NCCL chose, and the other predictors' times, in one line.
    pub line: String,
}

impl NcclMachine {
    /// NCCL on `ranks` ranks of a machine: a name, or a JSON file that holds an object like a run's `hardware`.
    ///
    /// # Errors
    /// An unknown machine, or one with another number of ranks; a file that cannot be read.
    pub fn new(topology: &str, ranks: u32, options: NcclOptions) -> CommandResult<NcclMachine> {
        let machine = machine(topology, ranks)?;
        let platform = Platform::of(&machine, ranks, options.library);
        let setting =
            Setting { machine, platform, overrides: options.overrides.clone(), driven: 1, host_stores: None };
        Ok(NcclMachine { setting, topology: topology.into(), ranks, options })
    }

    /// Refuses a collective that the model of NCCL does not cover: those that NCCL's tuner does not choose for, all-to-all excepted.
    ///
    /// # Errors
    /// A collective that the model does not cover.
    pub fn covers(collective: Collective) -> CommandResult {
        match TUNED.contains(&collective) || collective == Collective::AllToAll {
            true => Ok(()),
            false => Err(CommandError::usage(format!(
                "the model of NCCL does not cover {collective}; it covers {} and {}",
                TUNED.map(Collective::name).join(", "),
                Collective::AllToAll
            ))),
        }
    }

    /// Times one size of a call; ignores the algorithm of `choice`.
    ///
    /// # Errors
    /// Flags that leave NCCL no algorithm or protocol; a schedule that cannot be timed.
    pub fn time(&self, choice: &Choice, size: u64) -> CommandResult<NcclTimed> {
        let collective = choice.collective;
        NcclMachine::covers(collective)?;
        let (parameters, terms) = (&self.options.parameters, self.options.terms);
        let (count, bytes) = choice.count(size);
        let adds_bytes = collective.reduces() && choice.dtype.size() == 1;
        let case = self.setting.case(collective, bytes, false).map_err(CommandError::usage)?;
        let case = PhysicsCase { adds_bytes, ..case };
        let found = simulated(&case, parameters, terms).map_err(refused)?;
        // NCCL groups the sends and receives of an all-to-all, which its tuner does not estimate.
        let grouped = collective == Collective::AllToAll;
        let by = if grouped { "sends and receives" } else { case.algorithm.name() };
        let tuner = if grouped {
            String::new()
        } else {
            format!(", {} {:.1} us", Predictor::ClosedForm.name(), case.tuner_us)
        };
        let call = CollectiveCall {
            collective: collective.name().into(),
            algorithm: format!("NCCL {by}/{}", case.protocol),
            ranks: self.ranks,
            dtype: choice.dtype.name().into(),
            op: collective.reduces().then(|| choice.op.name().into()),
            root: collective.rooted().then(|| choice.shape.root().0),
            count,
            bytes,
            tree_hash: None,
            order_class: None,
        };
        let spread = spread_of(&self.options.spreads, &self.setting.machine, bytes);
        let interval = spread.map(|spread| spread.around(found.time_us));
        let within = interval.map_or(String::new(), |ends| {
            format!(
                " (80 % {} to {}, 95 % {} to {})",
                time(ends.low_us),
                time(ends.high_us),
                time(ends.low95_us),
                time(ends.high95_us)
            )
        });
        let line = format!(
            "# {bytes} B: {by}/{}, {} of {} channels{within}; {} {:.1} us{tuner}",
            case.protocol,
            case.used,
            case.running,
            Predictor::Physical.name(),
            closed(&case, parameters, terms),
        );
        let record = SimulatedCollective { interval, ..record(call, &self.topology, &found, collective) };
        Ok(NcclTimed { record, line })
    }
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
        time_us: found.time_us,
        bound_us: found.bound_us,
        algbw_gbps,
        busbw_gbps,
        messages: (found.messages > 0).then_some(found.messages),
        skipped_messages: Some(found.skipped).filter(|skipped| *skipped > 0),
        ..SimulatedCollective::default()
    }
}

/// The greatest length of a description in bytes.
const LONGEST: u64 = 1 << 20;

/// The machine with this name, or the machine of a JSON file that holds an object like a run's `hardware`.
fn machine(topology: &str, ranks: u32) -> CommandResult<Machine> {
    let head = topology.split([':', ',']).next().unwrap_or_default();
    if !topology.to_ascii_lowercase().ends_with(".json") {
        if is_node_file(head) {
            return NcclTopology::machine(topology, ranks).map_err(CommandError::usage);
        }
        let is_machine = Preset::named(head).is_ok();
        return match Topology::named(topology, ranks) {
            Ok(links) if !is_machine => Err(links_alone(topology, &links)),
            // The name is that of a file, so the error of reading the file is reported.
            Err(error) if !is_machine && head.contains(['.', '/']) => Err(CommandError::usage(error)),
            _ => Preset::machine(topology, ranks).map_err(CommandError::usage),
        };
    }
    let wrong = |error: &dyn std::fmt::Display| CommandError::usage(format!("{topology}: {error}"));
    let text = read_text_at_most(Path::new(topology), LONGEST, "a machine's description")
        .map_err(|error| wrong(&error))?;
    refuse_foreign(topology, &text).map_err(CommandError::usage)?;
    let words: Description =
        serde_json::from_str(&text).map_err(|error| wrong(&json_error(&error.to_string(), None)))?;
    let mut machine = Machine::understand(&words).map_err(|error| wrong(&error))?;
    let ignored = words.not_understood(&machine).map_err(|error| wrong(&error))?;
    let assumed: Vec<&str> = machine.assumed_of_nics().collect();
    if !assumed.is_empty() {
        tracing::info!(
            "{topology}: {}; give both in `inter_node`, such as \"8x400Gb/s InfiniBand\"",
            assumed.join("; ")
        );
    }
    machine.assumed.extend(ignored);
    let all = u64::from(machine.devices) * u64::from(machine.nodes);
    match all == u64::from(ranks) {
        true => Ok(machine),
        false => Err(wrong(&format!("has {all} GPUs, but --ranks is {ranks}; give --ranks {all}"))),
    }
}

/// The error for a topology that has links and no machine. Its example has the numbers of the topology's nodes.
fn links_alone(topology: &str, links: &Topology) -> CommandError {
    let ranks = links.ranks();
    let (devices, nics) = match links.node() {
        Some((devices, nics, nic)) => (devices, format!("{nics}x{}Gb/s", nic.bandwidth.0 as f64 / 1.25e8)),
        None => (ranks.min(8), "8x400Gb/s".into()),
    };
    CommandError::usage(format!(
        "{topology} describes links only, and NCCL's choice also depends on the GPU, its NVLink, the NICs and their fabric. Describe \
         the machine in a JSON file with the keys `gpu`, `gpus_per_node`, `nodes`, `intra_node` and `inter_node`, such as {{\"gpu\": \
         \"A100 SXM\", \"gpus_per_node\": {devices}, \"nodes\": {}, \"intra_node\": \"NVLink\", \"inter_node\": \"{nics} InfiniBand\"}}; or name \
         a machine that `allfold machines` lists, with options, such as dgx-a100,devices={},nics=4",
        ranks.div_ceil(devices.max(1)),
        devices.min(8)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_that_is_not_covered_is_refused_with_those_that_are() {
        assert!(NcclMachine::covers(Collective::AllToAll).is_ok());
        let error = NcclMachine::covers(Collective::Gather).unwrap_err();
        assert!(matches!(error, CommandError::Usage(_)));
        assert_eq!(
            error.to_string(),
            "error: the model of NCCL does not cover gather; it covers all_reduce, all_gather, reduce_scatter, broadcast, reduce and \
             all_to_all"
        );
    }
}
