//! Makes cases that can be predicted from a run: its machine from a description, and NCCL's choice for every row.

use crate::runs::{Hardware, Run};
use crate::settings;
use crate::systems::system;
use allfold_nccl_model::physics::{PhysicsCase, STORED, Setting};
use allfold_nccl_model::{Library, Platform};
use allfold_sim::machines::presets::Preset;
use allfold_sim::machines::{Fabric, GpuModel, Machine};

/// A run that can be predicted.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The run's name.
    pub name: String,
    /// The name of the cluster.
    pub system: String,
    /// The number of nodes, as the run counts them.
    pub nodes: u32,
    /// The machine, and the settings from the run's environment.
    pub setting: Setting,
    /// [`Run::fingerprint`] of the run.
    pub fingerprint: u64,
    /// The rows of the run.
    pub rows: Vec<PreparedRow>,
}

/// A row with NCCL's choice.
#[derive(Clone, Debug)]
pub struct PreparedRow {
    /// The size in bytes, as nccl-tests counts it.
    pub bytes: u64,
    /// The measured time in microseconds.
    pub measured_us: f64,
    /// The case to predict.
    pub case: PhysicsCase,
}

/// The machine of runs that do not describe theirs, as the user names it.
#[derive(Clone, Debug)]
pub enum GivenMachine {
    /// A name with options that `--topology` takes.
    Named(String),
    /// A description in words. What a run lists itself may be left out of it.
    Described(Hardware),
}

/// Prepares a run. Its in-place rows are used only where it has no others. `given` is used for a run that does not describe its
/// machine, and must not contradict what the run lists.
///
/// # Errors
/// In one line: the run is suspect, or the description of its machine lacks something, or contradicts the run.
pub fn prepare(run: &Run, given: Option<&GivenMachine>, even_suspect: bool) -> Result<Prepared, String> {
    let refuse = |what: &dyn std::fmt::Display| Err(format!("{}: {what}", run.name));
    if run.suspect && !even_suspect {
        return refuse(&"doubted by its collector");
    }
    let (mut machine, nodes) = match machine_of(run, given) {
        Ok(found) => found,
        Err(error) => return refuse(&error),
    };
    let env = |key: &str| run.env.get(key).map(String::as_str);
    settings::apply(&run.env, &mut machine);
    let collnet = machine.switched && env("NCCL_COLLNET_ENABLE") == Some("1");
    let library = Library {
        version: run.nccl_version.as_deref().map_or(Library::default().version, version),
        nvls: env("NCCL_NVLS_ENABLE") != Some("0"),
        collnet,
    };
    let overrides = match settings::overrides(&run.env, &machine) {
        Ok(overrides) => overrides,
        Err(error) => return refuse(&error),
    };
    let driven = run.driven.unwrap_or_else(|| driven(&run.notes));
    if driven > 1 {
        machine.understood.push(format!("a thread drives {driven} GPUs"));
    }
    machine.understood.extend(run.remarks.iter().cloned());
    let mut platform = settings::limited(Platform::of(&machine, run.ranks, library), &run.env);
    // NVLink switches do not add numbers of a byte.
    let adds_bytes = run.collective.reduces() && ["int8", "uint8", "char"].contains(&&*run.dtype);
    if adds_bytes {
        platform.nvls = None;
    }
    let slingshot = machine.nics.is_some_and(|nics| nics.fabric == Fabric::Slingshot && nics.gpudirect);
    let matched = env("FI_CXI_RX_MATCH_MODE").is_some_and(|mode| mode.eq_ignore_ascii_case("software"));
    let stored = env("FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD").and_then(|bytes| bytes.parse().ok());
    let host_stores = (slingshot && matched).then(|| stored.unwrap_or(STORED));
    let setting = Setting { machine, platform, overrides, driven, host_stores };
    let both = run.rows.iter().any(|row| !row.in_place);
    let mut rows = Vec::new();
    for row in run.rows.iter().filter(|row| !(both && row.in_place)) {
        match setting.case(run.collective, row.bytes, rows.is_empty()) {
            Ok(case) => {
                let case = PhysicsCase { adds_bytes, ..case };
                rows.push(PreparedRow { bytes: row.bytes, measured_us: row.time_us, case });
            }
            Err(error) => return refuse(&error),
        }
    }
    Ok(Prepared {
        name: run.name.clone(),
        system: system(run),
        nodes,
        setting,
        fingerprint: run.fingerprint(),
        rows,
    })
}

/// How a user names the machine of a run.
const GIVE: &str = "give the machine by its name, such as --topology hgx-h100 (`allfold machines` lists the names), or by a JSON file, \
    --machine FILE, such as {\"gpu\": \"H100 SXM\", \"gpus_per_node\": 8, \"nodes\": 2, \"inter_node\": \"8x400Gb/s InfiniBand\"}";

/// The machine of a run and its number of nodes: by the run's own description, or by the ranks that the run lists and what is given.
fn machine_of(run: &Run, given: Option<&GivenMachine>) -> Result<(Machine, u32), String> {
    let own = match &run.hardware {
        Some(hardware) => return understood(hardware, run.ranks),
        None => run.listed_hardware()?,
    };
    let (mut machine, nodes) = match (own, given) {
        (own, Some(GivenMachine::Named(text))) => {
            let own = own.unwrap_or_default();
            // Hosts of which the run uses a part of the GPUs; a rack is no host.
            let has = Preset::with_options(text).map_or(0, |preset| preset.devices);
            let part =
                own.gpus_per_node.filter(|each| *each < has && has <= 16 && !text.contains("devices="));
            let named = part.map_or(text.clone(), |each| format!("{text},devices={each}"));
            let machine = Preset::machine(&named, run.ranks).map_err(|error| error.to_string())?;
            // A rack is one node of the machine and several hosts of the run.
            let rack = own
                .gpus_per_node
                .is_some_and(|each| machine.devices > 16 && machine.devices.is_multiple_of(each));
            let words = Hardware {
                gpu: Some(machine.gpu.name.clone()),
                gpus_per_node: if rack { own.gpus_per_node } else { Some(machine.devices) },
                nodes: if rack { own.nodes } else { Some(machine.nodes) },
                ..Hardware::default()
            };
            let nodes = agreed(&own, &words, text)?.nodes.unwrap_or(machine.nodes);
            (machine, nodes)
        }
        (Some(own), Some(GivenMachine::Described(words))) => {
            understood(&agreed(&own, words, "the file of --machine")?, run.ranks)?
        }
        (None, Some(GivenMachine::Described(words))) => understood(words, run.ranks)?,
        (Some(own), None) if own.gpu.is_some() && own.nodes == Some(1) => understood(&own, run.ranks)?,
        (Some(own), None) => {
            return Err(format!("the run lists {}, and not the network between them; {GIVE}", hosts(&own)));
        }
        (None, None) => return Err(format!("the run does not say what it ran on; {GIVE}")),
    };
    machine.understood.extend(run.nccl_version.as_ref().map(|version| format!("NCCL {version}")));
    Ok((machine, nodes))
}

fn understood(words: &Hardware, ranks: u32) -> Result<(Machine, u32), String> {
    let machine = Machine::understand(words).map_err(|error| error.to_string())?;
    match other_ranks(&machine, words, ranks) {
        Some(other) => Err(other),
        None => Ok((machine, words.nodes.unwrap_or(1))),
    }
}

/// What a run lists, completed by what the user gives.
///
/// # Errors
/// The two contradict each other.
fn agreed(own: &Hardware, given: &Hardware, whence: &str) -> Result<Hardware, String> {
    let model = |words: &Hardware| words.gpu.as_deref().and_then(GpuModel::named).map(|gpu| &gpu.name);
    let unlike = |own: Option<u32>, given: Option<u32>| own.is_some() && given.is_some() && own != given;
    if model(own).is_some() && model(given).is_some() && model(own) != model(given)
        || unlike(own.gpus_per_node, given.gpus_per_node)
        || unlike(own.nodes, given.nodes)
    {
        return Err(format!(
            "the run lists {}, and {whence} has {}; give the machine that the run was on",
            hosts(own),
            hosts(given)
        ));
    }
    Ok(Hardware {
        gpu: model(own).and(own.gpu.clone()).or(given.gpu.clone()),
        gpus_per_node: own.gpus_per_node.or(given.gpus_per_node),
        nodes: own.nodes.or(given.nodes),
        ..given.clone()
    })
}

/// `2 hosts of 8 x NVIDIA H100 80GB HBM3`.
fn hosts(words: &Hardware) -> String {
    let count = |count: Option<u32>| count.map_or("?".into(), |count| count.to_string());
    let (nodes, each) = (count(words.nodes), count(words.gpus_per_node));
    let plural = if nodes == "1" { "" } else { "s" };
    format!("{nodes} host{plural} of {each} x {}", words.gpu.as_deref().unwrap_or("an unnamed GPU"))
}

/// What is wrong if a machine has another number of GPUs than a run has ranks.
fn other_ranks(machine: &Machine, hardware: &Hardware, ranks: u32) -> Option<String> {
    let gpus = u64::from(machine.devices) * u64::from(machine.nodes);
    let (devices, nodes) = (hardware.gpus_per_node.unwrap_or(1), hardware.nodes.unwrap_or(1));
    (gpus != u64::from(ranks)).then(|| {
        format!(
            "its hardware is {nodes} nodes of {devices} GPUs, and it has {ranks} ranks; expected `gpus_per_node` times `nodes` to be \
             the number of ranks"
        )
    })
}

/// How many GPUs a process drives, by notes such as `single process -g 8`; 1 where the notes do not say.
fn driven(notes: &str) -> u32 {
    let after = notes.split("-g ").nth(1).filter(|_| notes.contains("process"));
    let digits = after.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    digits.and_then(|digits| digits.parse().ok()).filter(|&gpus| gpus > 0).unwrap_or(1)
}

/// The major and minor number of a version such as `2.29.3+cuda13.1` or `2.18`.
fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => Library::default().version,
    }
}
