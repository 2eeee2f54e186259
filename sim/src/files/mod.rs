//! Files of other tools that describe machines.
//!
//! ```text
//! NCCL topology XML   nccl_topology   a node: CPUs, PCI tree, GPUs, NVLinks, NICs
//! NCCL graph XML      nccl_graph      the rings and trees that NCCL found on it
//! ASTRA-sim YAML      astra           dimensions of a network, in GiB/s
//! nvidia-smi topo -m  smi_topo        a matrix: which GPUs and NICs are near to each other
//! others              foreign         are named in the error, with what to use instead
//! ```
//!
//! An error gives the line, the column and what was expected. The memory allocated depends on the length of a file, never on
//! numbers that the file contains.

mod astra;
mod foreign;
mod nccl_graph;
mod nccl_machine;
mod nccl_topology;
mod smi_topo;
#[cfg(test)]
mod tests;
mod xml;

pub use nccl_graph::{GraphPattern, NcclGraph, NcclGraphs};
pub use nccl_topology::NcclTopology;

use crate::machines::GpuModel;
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
    if ends(".yml") || ends(".yaml") {
        return astra::topology(path, &load(path)?, ranks).map(Some);
    }
    if ends(".json") && Path::new(path).is_file() {
        let what = foreign::named(path, &load(path)?);
        return what.map_or(Ok(None), |what| Err(Error::File { path: path.into(), what }));
    }
    if !is_node_file(path) || !(ends(".xml") || Path::new(path).is_file()) {
        return Ok(None);
    }
    let (read, _, spec) = read_nccl(name)?;
    let topology = read.node.topology(ranks, spec.fabrics)?.renamed(name).with_notes(read.notes);
    Ok(Some(topology))
}

/// Whether the name is one of a file that describes a node: NCCL's, or a matrix of `nvidia-smi topo -m`.
pub fn is_node_file(name: &str) -> bool {
    let path = name.split(',').next().unwrap_or(name).to_ascii_lowercase();
    [".xml", ".txt", ".log", ".out"].iter().any(|ending| path.ends_with(ending))
}

/// Refuses the text of a file of another tool that describes no machine; the error names the kind of file and what to use instead.
///
/// # Errors
/// Such a file.
pub fn refuse_foreign(path: &str, text: &str) -> Result<()> {
    foreign::named(path, text).map_or(Ok(()), |what| Err(Error::File { path: path.into(), what }))
}

/// What the NCCL file of `FILE[,OPTIONS]` describes, the machine that completes it, and the options.
fn read_nccl(name: &str) -> Result<(NcclTopology, Option<Preset>, Spec)> {
    let (path, options) = name.split_once(',').unwrap_or((name, ""));
    let text = load(path)?;
    let spec = Spec::read(&if options.is_empty() { String::new() } else { format!(",{options}") })?;
    if let Some(what) = foreign::named(path, &text).filter(|_| !text.contains("<system")) {
        return Err(Error::File { path: path.into(), what });
    }
    if smi_topo::is_matrix(&text) {
        // A matrix takes the speeds of links from a machine, or from a GPU alone.
        let named = spec.machine.as_deref();
        let of_gpu = named.and_then(GpuModel::called);
        let preset = named.filter(|_| of_gpu.is_none()).map(Preset::named).transpose()?;
        let gpu = of_gpu.or_else(|| GpuModel::called(&preset.as_ref()?.gpu));
        return Ok((smi_topo::read(path, &text, gpu, &spec)?, preset, spec));
    }
    if !path.to_ascii_lowercase().ends_with(".xml") {
        let what = "a topology file ends in .toml, an NCCL topology in .xml, one of ASTRA-sim in .yml; a text file is what \
                    `nvidia-smi topo -m` prints";
        return Err(Error::File { path: path.into(), what: what.into() });
    }
    let preset = spec.machine.as_deref().map(Preset::named).transpose()?;
    let read = NcclTopology::read(path, &text, preset.as_ref())?;
    Ok((read, preset, spec))
}

impl NcclTopology {
    /// What the file of `FILE[,OPTIONS]` describes, whichever kind of file it is.
    ///
    /// # Errors
    /// A file that cannot be read, or is of another kind; the error names the kind and what to use instead.
    pub fn load(name: &str) -> Result<NcclTopology> {
        read_nccl(name).map(|(read, ..)| read)
    }
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
