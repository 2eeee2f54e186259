//! `allfold machines`: the machines that `--topology` takes by name, with the sources of their figures. The command also describes
//! a topology file, and the machine in one of NCCL's topology or graph files.

use allfold_cli::columns;
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_report::format::counted;
use allfold_report::records::MachineListed;
use allfold_sim::Topology;
use allfold_sim::files::{self, NcclGraphs, NcclTopology};
use allfold_sim::machines::presets::{OPTIONS, Preset};
use std::path::Path;

/// Flags of `machines`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold machines
  allfold machines dgx-a100
  allfold machines h100
  allfold machines ndv4-topo.xml --machine nd-a100-v4
  allfold simulate all_reduce --topology dgx-a100:16 --ranks 128 -b 1G
  allfold simulate all_reduce --topology hgx-h100:64,fat-tree=2:1,pod=32 --ranks 512 -b 1G")]
pub(crate) struct Args {
    /// The machine whose figures and sources are shown, a GPU whose machines are listed, or a file to describe: a topology (.toml), an NCCL
    /// topology or graph (.xml), or what `nvidia-smi topo -m` prints (.txt)
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// The machine that completes an NCCL topology file
    #[arg(long, value_name = "NAME", requires = "name")]
    machine: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Lists all machines, or prints one machine in full.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    match &args.name {
        Some(path) if files::is_node_file(path) => file(path, args.machine.as_deref(), &mut output)?,
        Some(path) if path.ends_with(".toml") => own_file(path, &mut output)?,
        Some(name) => match Preset::named(name) {
            Ok(preset) => {
                output.say(format!("{}: {}", preset.name, preset.title))?;
                for source in preset.sources() {
                    output.say(format!("  {source}"))?;
                }
                output.record(&listed(&preset))?;
            }
            Err(unknown) => {
                // A shape of links, a machine with options, or anything else that `--topology` takes.
                let ranks = named_ranks(name).unwrap_or(RANKS);
                match Topology::named(name, ranks) {
                    Ok(topology) => {
                        output.say(format!("{name}: {}", counted(ranks as usize, "rank")))?;
                        links(&topology, &mut output)?;
                    }
                    Err(error) => {
                        match (&with_word(name)?[..], name.contains([':', ',']) || Path::new(name).is_file())
                        {
                            ([], true) => return Err(CommandError::usage(error)),
                            ([], false) => return Err(CommandError::usage(unknown)),
                            (presets, _) => table(presets, &mut output)?,
                        }
                    }
                }
            }
        },
        None => {
            table(&Preset::all().map_err(CommandError::run)?, &mut output)?;
            output.say("\nAfter a name: `:NODES`, and options that are separated by commas:")?;
            for (option, meaning) in OPTIONS {
                output.say(format!("  {option:<18} {meaning}"))?;
            }
        }
    }
    output.close()
}

/// The machines with this word, such as a GPU, in their name or title.
fn with_word(word: &str) -> CommandResult<Vec<Preset>> {
    let word = word.to_ascii_lowercase();
    let mut presets = Preset::all().map_err(CommandError::run)?;
    let has =
        |text: &str| text.to_ascii_lowercase().split(|c: char| !c.is_alphanumeric()).any(|part| part == word);
    presets.retain(|preset| has(&preset.name) || has(&preset.title));
    Ok(presets)
}

/// Prints a line and keeps a record for each machine.
fn table(presets: &[Preset], output: &mut RunOutput) -> CommandResult {
    presets.iter().try_for_each(|preset| output.record(&listed(preset)))?;
    output.say(columns::table(
        presets,
        &[
            ("name", |preset| preset.name.clone()),
            ("also", |preset| preset.also.join(" ")),
            ("machine", |preset| preset.title.clone()),
        ],
    ))
}

/// The number of ranks that a topology is described for if it names none: that of a usual node.
const RANKS: u32 = 8;

/// The number of devices of a machine with a number of nodes, such as `dgx-a100:2`.
fn named_ranks(name: &str) -> Option<u32> {
    let (head, options) = name.split_once(':')?;
    let mut options = options.split(',');
    let nodes: u32 = options.next()?.parse().ok()?;
    let devices = match options.find_map(|option| option.strip_prefix("devices=")) {
        Some(devices) => devices.parse().ok()?,
        None => Preset::named(head).ok()?.devices,
    };
    nodes.checked_mul(devices).filter(|ranks| *ranks > 0)
}

/// Prints the links that a topology file describes.
fn own_file(path: &str, output: &mut RunOutput) -> CommandResult {
    let text = files::load(path).map_err(CommandError::usage)?;
    // A file that cannot be parsed is refused by the reader of topologies, which names the place.
    let table: toml::Table = toml::from_str(&text).unwrap_or_default();
    let own = table.get("ranks").and_then(|ranks| u32::try_from(ranks.as_integer()?).ok());
    let ranks = own.unwrap_or(RANKS);
    let topology = Topology::from_toml(path, &text, ranks).map_err(CommandError::usage)?;
    let note = if own.is_some() { "" } else { "; the file names no number, so that any fits" };
    output.say(format!("{path}: {}{note}", counted(ranks as usize, "rank")))?;
    links(&topology, output)
}

/// Prints the links of a topology.
fn links(topology: &Topology, output: &mut RunOutput) -> CommandResult {
    output.say(columns::table(
        topology.families(),
        &[
            ("links", |family| family.name.clone()),
            ("count", |family| family.count.to_string()),
            ("GB/s one way", |family| format!("{:.2}", family.link.bandwidth.as_gb())),
            ("latency (us)", |family| format!("{:.2}", family.link.latency.as_micros())),
        ],
    ))
}

/// Prints what an NCCL topology or graph file describes.
fn file(path: &str, machine: Option<&str>, output: &mut RunOutput) -> CommandResult {
    let text = files::load(path).map_err(CommandError::usage)?;
    if text.contains("<graphs") {
        let read = NcclGraphs::read(path, &text).map_err(CommandError::usage)?;
        return output.say(columns::table(
            &read.graphs,
            &[
                ("graph", |graph| graph.id.to_string()),
                ("pattern", |graph| format!("{:?}", graph.pattern)),
                ("channels", |graph| graph.channels.len().to_string()),
                ("GB/s each", |graph| graph.inside_gbps.to_string()),
                ("GB/s", |graph| graph.bandwidth_gb_per_s().to_string()),
                ("path", |graph| graph.inside.clone()),
                ("order", |graph| {
                    let gpus = graph.channels.first().into_iter().flatten().map(u32::to_string);
                    gpus.collect::<Vec<_>>().join(" ")
                }),
            ],
        ));
    }
    let named = machine.map_or(path.to_string(), |machine| format!("{path},machine={machine}"));
    let read = NcclTopology::load(&named).map_err(CommandError::usage)?;
    let node = &read.node;
    let (devices, places) = (node.devices as usize, node.places.len());
    output.say(format!(
        "{path}: {}, {}, {}",
        counted(devices, "GPU"),
        counted(places, "other place"),
        counted(node.nics.len(), "NIC")
    ))?;
    for (what, gb_per_s) in [
        ("NVLink of GPU 0", Some(node.nvlink_gb_per_s(0)).filter(|_| devices > 0)),
        ("over all halves of the node", Some(node.bisection_gb_per_s()).filter(|_| devices > 1)),
        ("out of the node", Some(node.network_gb_per_s()).filter(|_| !node.nics.is_empty())),
    ] {
        let said =
            gb_per_s.map_or("none".into(), |gb_per_s| format!("{:.1} GB/s one way", gb_per_s.max(0.0)));
        output.say(format!("  {what}: {said}"))?;
    }
    read.notes.iter().try_for_each(|note| output.say(format!("  note: {note}")))
}

fn listed(preset: &Preset) -> MachineListed {
    MachineListed {
        name: preset.name.clone(),
        title: preset.title.clone(),
        gpu: preset.gpu.clone(),
        gpus_per_node: preset.devices,
        nics_per_node: preset.nics.count,
        nic_gbit_per_s: preset.nics.bandwidth.gbit_per_s(),
        fabric: preset.nics.fabric.clone(),
        sources: preset.sources(),
    }
}
