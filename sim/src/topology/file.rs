//! Reads a topology from a TOML file: a built-in kind with the file's numbers, or an explicit graph.
//!
//! ```toml
//! kind = "nodes"              # or "switch", "ring", "mesh" (which have no [nic]), "graph"
//! ranks = 64                  # optional; default: as many as the caller requests
//! devices = 8
//! nics = 4
//! [device]
//! bandwidth = "300 GB/s"      # 1 GB/s is 1e9 bytes per second, each way
//! latency = "0.6 us"
//! [nic]
//! bandwidth = "200 Gb/s"      # bits: the same as "25 GB/s"
//! latency = "2.7 us"
//! [costs]                     # optional; default: the values of `Costs::default`
//! overhead = "0.5 us"
//! [gpu]                       # optional: a GPU of one's own; or the name of a known one, above the tables: gpu = "H100 SXM"
//! name = "X100"
//! f32 = 80                    # TFLOP/s
//! f16 = 1200                  # TFLOP/s on tensor cores
//! memory = "4 TB/s"
//! capacity = 96               # GB
//! ```
//!
//! A graph names its switches and lists its links. A number is a rank, and a list means one link for each entry:
//!
//! ```toml
//! kind = "graph"
//! ranks = 4
//! switches = ["leaf", "spine"]
//! [[link]]
//! from = [0, 1, 2, 3]
//! to = "leaf"
//! bandwidth = "25 GB/s"
//! latency = "1 us"            # `one_way = true` for this direction only
//! ```
//!
//! `docs/TOPOLOGY.md` lists every key.

use super::graph::Edge;
use super::{Link, Topology};
use crate::machines::GpuRates;
use crate::quantity::{Bandwidth, Latency};
use crate::{Costs, Error, Result, Rounding, expected, line_and_column, read_text_at_most, suggest};
use serde::Deserialize;
use std::ops::Range;
use std::path::Path;
use toml::{Spanned, Value};

const KINDS: [&str; 5] = ["switch", "ring", "mesh", "nodes", "graph"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kind: Spanned<String>,
    ranks: Option<Spanned<u32>>,
    devices: Option<u32>,
    nics: Option<u32>,
    device: Option<LinkText>,
    nic: Option<LinkText>,
    #[serde(default)]
    switches: Vec<String>,
    #[serde(default)]
    link: Vec<EdgeText>,
    costs: Option<CostsText>,
    gpu: Option<Spanned<Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkText {
    bandwidth: Bandwidth,
    latency: Latency,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeText {
    from: Spanned<Value>,
    to: Spanned<Value>,
    bandwidth: Bandwidth,
    latency: Latency,
    #[serde(default)]
    one_way: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CostsText {
    overhead: Option<Latency>,
    launch: Option<Latency>,
    memory: Option<Bandwidth>,
    reduce_passes: Option<u64>,
    whole_nanos: Option<bool>,
}

/// The greatest length of a file in bytes.
const LONGEST: u64 = 1 << 20;

/// A mistake in the file: its byte range in the text, and what is wrong.
struct Wrong(Range<usize>, String);

type Read<T> = std::result::Result<T, Wrong>;

impl Topology {
    /// Reads a topology file as a topology of `ranks` ranks.
    ///
    /// # Errors
    /// A file that cannot be read; a mistake in the file, with line, column and the expected text.
    pub fn load(path: &Path, ranks: u32) -> Result<Topology> {
        Topology::from_toml(&path.display().to_string(), &read(path)?, ranks)
    }

    /// Reads a topology from the text of a file; `path` names the file in errors.
    pub fn from_toml(path: &str, text: &str, ranks: u32) -> Result<Topology> {
        File::read(text).and_then(|file| file.build(path, ranks)).map_err(|wrong| wrong.at(path, text))
    }

    /// The GPU that a topology file names or describes; `None` if the file has no `gpu`.
    ///
    /// # Errors
    /// As [`Topology::load`], except for the links.
    pub(crate) fn gpu_of(path: &Path) -> Result<Option<&'static GpuRates>> {
        let text = read(path)?;
        let gpu = File::read(&text).and_then(|file| file.gpu());
        gpu.map_err(|wrong| wrong.at(&path.display().to_string(), &text))
    }
}

/// The text of a topology file.
fn read(path: &Path) -> Result<String> {
    read_text_at_most(path, LONGEST, "a topology")
        .map_err(|error| Error::File { path: path.display().to_string(), what: unread(&error) })
}

impl Wrong {
    fn at(self, path: &str, text: &str) -> Error {
        let (line, column) = line_and_column(text, self.0.start);
        Error::Parse { path: path.into(), line, column, what: self.1 }
    }
}

impl File {
    fn read(text: &str) -> Read<File> {
        toml::from_str(text).map_err(|error| Wrong(error.span().unwrap_or(0..0), said(error.message(), text)))
    }

    /// The GPU that `gpu` names or describes.
    fn gpu(&self) -> Read<Option<&'static GpuRates>> {
        let Some(gpu) = &self.gpu else { return Ok(None) };
        let wrong = |what: String| Wrong(gpu.span(), format!("gpu: {what}"));
        match gpu.get_ref() {
            Value::String(name) => GpuRates::named(name).map(Some).map_err(|error| wrong(error.to_string())),
            own => {
                let own: GpuRates = own
                    .clone()
                    .try_into()
                    .map_err(|error: toml::de::Error| wrong(expected(error.message())))?;
                own.keep().map(Some).map_err(wrong)
            }
        }
    }

    fn build(&self, path: &str, ranks: u32) -> Read<Topology> {
        self.gpu()?;
        if let Some(own) = self.ranks.as_ref().filter(|own| *own.get_ref() != ranks) {
            let own_ranks = own.get_ref();
            let what = format!(
                "this topology joins {own_ranks} ranks, not {ranks}; use {own_ranks} ranks or leave `ranks` out"
            );
            return Err(Wrong(own.span(), what));
        }
        let kind = self.kind.get_ref().as_str();
        self.refuse_foreign(kind)?;
        let built = match kind {
            "switch" => Topology::switch(ranks, self.device()?),
            "ring" => Topology::ring(ranks, self.device()?),
            "mesh" => Topology::mesh(ranks, self.device()?),
            "nodes" => {
                let devices = self.devices.ok_or_else(|| self.missing("devices = 8"))?;
                let nics = self.nics.unwrap_or(devices);
                let nic =
                    self.nic.as_ref().ok_or_else(|| self.missing("[nic] with bandwidth and latency"))?;
                Topology::nodes(ranks, devices, nics, self.device()?, nic.link())
            }
            "graph" => Topology::graph(ranks, &self.switches, self.edges(ranks)?),
            other => {
                return Err(Wrong(self.kind.span(), suggest::unknown("kind of topology", other, &KINDS)));
            }
        };
        let mut topology = built.map_err(|error| match error {
            Error::Topology(what) => Wrong(self.kind.span(), what),
            other => Wrong(self.kind.span(), other.to_string()),
        })?;
        topology.name = path.into();
        topology.costs = self.costs.as_ref().map_or_else(Costs::default, CostsText::costs);
        Ok(topology)
    }

    /// A key that belongs to another kind is an error, because it would have no effect.
    fn refuse_foreign(&self, kind: &str) -> Read<()> {
        let (nodes, graph) = (kind == "nodes", kind == "graph");
        let foreign = [
            ("devices", self.devices.is_some() && !nodes),
            ("nics", self.nics.is_some() && !nodes),
            ("nic", self.nic.is_some() && !nodes),
            ("device", self.device.is_some() && graph),
            ("switches", !self.switches.is_empty() && !graph),
            ("link", !self.link.is_empty() && !graph),
        ];
        match foreign.iter().find(|(_, present)| *present) {
            Some((key, _)) if KINDS.contains(&kind) => {
                Err(Wrong(self.kind.span(), format!("kind \"{kind}\" has no `{key}`; leave it out")))
            }
            _ => Ok(()),
        }
    }

    fn missing(&self, what: &str) -> Wrong {
        Wrong(self.kind.span(), format!("kind \"{}\" needs {what}", self.kind.get_ref()))
    }

    fn device(&self) -> Read<Link> {
        let device = self.device.as_ref();
        device.map(LinkText::link).ok_or_else(|| self.missing("[device] with bandwidth and latency"))
    }

    fn edges(&self, ranks: u32) -> Read<Vec<Edge>> {
        let mut edges = Vec::new();
        for text in &self.link {
            let link = link(text.bandwidth, text.latency);
            let ends = (self.places(&text.from, ranks)?, self.places(&text.to, ranks)?);
            for (&from, &to) in ends.0.iter().flat_map(|from| ends.1.iter().map(move |to| (from, to))) {
                if from == to {
                    return Err(Wrong(
                        text.from.span(),
                        "a link joins a rank or switch to itself; name two different ones".into(),
                    ));
                }
                edges.push(Edge { from, to, link });
                if !text.one_way {
                    edges.push(Edge { from: to, to: from, link });
                }
            }
        }
        Ok(edges)
    }

    /// The places of the graph, numbered as in [`Edge`], that a link's end names: a rank's number, a switch's name, or a list.
    fn places(&self, end: &Spanned<Value>, ranks: u32) -> Read<Vec<u32>> {
        let one = |value: &Value| match value {
            Value::Integer(rank) => u32::try_from(*rank).ok().filter(|rank| *rank < ranks).ok_or_else(|| {
                let last = ranks.saturating_sub(1);
                Wrong(end.span(), format!("rank {rank} does not exist; ranks go from 0 to {last}"))
            }),
            Value::String(name) if is_range(name) => Err(Wrong(
                end.span(),
                format!(
                    "\"{name}\" names no rank; write numbers without quotation marks, several ranks as a list such as [0, 1, 2, 3]"
                ),
            )),
            Value::String(name) => {
                let at = self.switches.iter().position(|switch| switch == name);
                let names: Vec<&str> = self.switches.iter().map(String::as_str).collect();
                let at = at.ok_or_else(|| Wrong(end.span(), suggest::unknown("switch", name, &names)))?;
                Ok(ranks + at as u32)
            }
            _ => Err(Wrong(
                end.span(),
                "an end of a link is a rank's number, a switch's name or a list of those".into(),
            )),
        };
        match end.get_ref() {
            Value::Array(list) => list.iter().map(one).collect(),
            value => Ok(vec![one(value)?]),
        }
    }
}

impl LinkText {
    fn link(&self) -> Link {
        link(self.bandwidth, self.latency)
    }
}

impl CostsText {
    fn costs(&self) -> Costs {
        let base = Costs::default();
        let time = |text: Option<Latency>, otherwise| text.map_or(otherwise, Latency::picos);
        Costs {
            overhead: time(self.overhead, base.overhead),
            launch: time(self.launch, base.launch),
            memory: self.memory.map(Bandwidth::bytes),
            reduce_passes: self.reduce_passes.unwrap_or(base.reduce_passes),
            rounding: if self.whole_nanos == Some(true) { Rounding::WholeNanos } else { Rounding::Exact },
        }
    }
}

fn link(bandwidth: Bandwidth, latency: Latency) -> Link {
    Link { bandwidth: bandwidth.bytes(), latency: latency.picos() }
}

/// Why a file could not be read. The name of a missing file may have been meant as a topology that needs no file.
fn unread(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            "there is no such file; `allfold machines` lists topologies that need none, docs/TOPOLOGY.md shows how to write one".into()
        }
        _ => error.to_string(),
    }
}

/// Whether an end of a link was meant as ranks: digits, with `-`, `,`, `.` or `:` between them.
fn is_range(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ',' | '.' | ':' | ' '))
}

/// Keys that other programs have, and what to write instead of each.
const OTHERS: [(&str, &str); 5] = [
    ("nodes", "there are as many nodes as the ranks need: leave `nodes` out, or write `ranks`"),
    ("nic_count", "did you mean `nics`?"),
    ("num_nics", "did you mean `nics`?"),
    ("gpus", "did you mean `devices`?"),
    ("gpus_per_node", "did you mean `devices`?"),
];

/// The TOML parser's message in one line. For a key that does not exist, the message says how to write it; a table that is given as a
/// list is answered with the kind of topology whose links may differ.
fn said(message: &str, text: &str) -> String {
    if let Some(key) = listed_table(text) {
        return format!(
            "`[[{key}]]` is a list, and all links of a [{key}] are alike: write [{key}] once; NICs or links of different speed need kind = \"graph\""
        );
    }
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let (Some((key, known)), true) = (quoted.split_first(), message.starts_with("unknown field")) else {
        return expected(message);
    };
    let other = OTHERS
        .iter()
        .find(|(other, _)| other == key && known.contains(&"nics"))
        .map(|(_, hint)| hint.to_string());
    let nearest =
        || suggest::nearest(key, known.iter().copied()).map(|name| format!("did you mean `{name}`?"));
    let hint = other.or_else(nearest).map_or_else(String::new, |hint| format!("; {hint}"));
    format!("unknown field `{key}`{hint} (there are {})", known.join(", "))
}

/// A table of one link or of the costs that the text gives as a list of tables, such as `[[nic]]`.
fn listed_table(text: &str) -> Option<&'static str> {
    let table: toml::Table = toml::from_str(text).ok()?;
    ["nic", "device", "costs"].into_iter().find(|key| table.get(*key).is_some_and(Value::is_array))
}

#[cfg(test)]
mod tests;
