//! Files of other tools that describe machines.
//!
//! ```text
//! NCCL topology XML   nccl_topology   a node: CPUs, PCI tree, GPUs, NVLinks, NICs
//! NCCL graph XML      nccl_graph      the rings and trees that NCCL found on it
//! ASTRA-sim YAML      astra           dimensions of a network, in GiB/s
//! ```
//!
//! An error gives the line, the column and what was expected. The memory allocated depends on the length of a file, never on
//! numbers that the file contains.

mod astra;
mod nccl_graph;
mod nccl_machine;
mod nccl_topology;
#[cfg(test)]
mod tests;
mod xml;

pub use nccl_graph::{GraphPattern, NcclGraph, NcclGraphs};
pub use nccl_topology::NcclTopology;

use crate::machines::presets::{Preset, Spec};
use crate::{Error, Result, Topology, read_text_at_most};
use std::path::Path;

/// The greatest length of a file in bytes; no description of a node is longer.
const LONGEST: u64 = 16 << 20;

/// A topology of `ranks` ranks from a file of another tool: `FILE[,OPTIONS]`. The options are those of a machine name and
/// `machine=NAME`, which completes an NCCL file. `None` if `name` is not the name of such a file.
pub(crate) fn topology(name: &str, ranks: u32) -> Result<Option<Topology>> {
    let path = name.split(',').next().unwrap_or(name);
    let ends = |ending: &str| path.to_ascii_lowercase().ends_with(ending);
    if !(ends(".xml") || ends(".yml") || ends(".yaml")) {
        return Ok(None);
    }
    if !ends(".xml") {
        return astra::topology(path, &load(path)?, ranks).map(Some);
    }
    let (read, _, spec) = read_nccl(name)?;
    let topology = read.node.topology(ranks, spec.fabrics)?.renamed(name).with_notes(read.notes);
    Ok(Some(topology))
}

/// What the NCCL file of `FILE[,OPTIONS]` describes, the machine that completes it, and the options.
fn read_nccl(name: &str) -> Result<(NcclTopology, Option<Preset>, Spec)> {
    let (path, options) = name.split_once(',').unwrap_or((name, ""));
    let text = load(path)?;
    let spec = Spec::read(&if options.is_empty() { String::new() } else { format!(",{options}") })?;
    let preset = spec.machine.as_deref().map(Preset::named).transpose()?;
    let read = NcclTopology::read(path, &text, preset.as_ref())?;
    Ok((read, preset, spec))
}

impl Topology {
    /// Reads ASTRA-sim's network description `text` as a topology of `ranks` ranks; `path` names the file in errors.
    ///
    /// # Errors
    /// The line and column of the mistake, and what was expected.
    pub fn from_astra(path: &str, text: &str, ranks: u32) -> Result<Topology> {
        astra::topology(path, text, ranks)
    }
}

/// Reads a file as text.
///
/// # Errors
/// A file that cannot be read, is not text, or is too long.
pub fn load(path: &str) -> Result<String> {
    read_text_at_most(Path::new(path), LONGEST, "a description of a machine")
        .map_err(|error| Error::File { path: path.into(), what: error.to_string() })
}
