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

/// Keys of earlier versions, which contained their units, and the current way to write each.
const WITH_UNITS: [(&str, &str); 5] = [
    ("bandwidth_gbps", "bandwidth = \"25 GB/s\""),
    ("latency_us", "latency = \"2.7 us\""),
    ("overhead_us", "overhead = \"0.5 us\""),
    ("launch_us", "launch = \"5 us\""),
    ("memory_gbps", "memory = \"2000 GB/s\""),
];

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

/// Keys that other programs or earlier versions have, and the current way to write each.
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
    if let Some((old, new)) = WITH_UNITS.iter().find(|(old, _)| old == key) {
        return format!("`{old}` is a key of earlier versions; write {new}, with its unit");
    }
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
mod tests {
    use super::*;
    use crate::{BytesPerSec, LinkId, Picos, Rank};

    const NODES: &str = "kind = \"nodes\"\ndevices = 8\nnics = 4\n[device]\nbandwidth = \"300 GB/s\"\nlatency = \"0.6 us\"\n[nic]\nbandwidth = \"25 GB/s\"\nlatency = \"2.7 us\"\n";

    fn error(text: &str) -> String {
        Topology::from_toml("t.toml", text, 4).unwrap_err().to_string()
    }

    #[test]
    fn nodes_are_the_built_in_ones_with_the_costs_of_the_file() {
        let text = format!("{NODES}[costs]\noverhead = \"0.5 us\"\nmemory = \"2000 GB/s\"\n");
        let (read, built) =
            (Topology::from_toml("t.toml", &text, 64), Topology::named("nodes8x4", 64).unwrap());
        let read = read.unwrap();
        assert_eq!(read.families(), built.families());
        assert_eq!(read.costs().overhead, Picos(500_000));
        assert_eq!(read.costs().memory, Some(BytesPerSec(2_000_000_000_000)));
        assert_eq!(read.costs().launch, built.costs().launch);
    }

    #[test]
    fn a_graph_joins_ranks_and_switches_both_ways() {
        let text = "kind = \"graph\"\nswitches = [\"leaf\"]\n[[link]]\nfrom = [0, 1, 2, 3]\nto = \"leaf\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";
        let topology = Topology::from_toml("t.toml", text, 4).unwrap();
        let mut path = Vec::new();
        topology.route(Rank(3), Rank(1), &mut path);
        let names: Vec<String> = path.iter().map(|link: &LinkId| topology.link_name(*link)).collect();
        assert_eq!(names, ["rank3>leaf[0]", "leaf>rank1[0]"]);
        assert_eq!(topology.graph.as_ref().unwrap().ports(4), (25_000_000_000, 100_000_000_000));
    }

    #[test]
    fn what_is_wrong_is_said_with_line_and_column() {
        assert!(
            error("kind = \"swich\"")
                .starts_with("t.toml:1:8: no kind of topology is called `swich`; did you mean `switch`?")
        );
        let error_in = |from: &str, to: &str| error(&NODES.replace(from, to));
        assert!(error_in("nics = 4", "nicks = 4").starts_with("t.toml:3:1: unknown field `nicks`"));
        assert!(error_in("nics = 4", "nics = 3").contains("cannot share 3 NICs evenly"));
        assert!(error_in("nics = 4", "nics = = 3").starts_with("t.toml:3:8"));
        assert!(
            error_in("latency = \"0.6 us\"", "latency = \"-1 us\"")
                .starts_with("t.toml:6:11: `-1 us` is not a possible time")
        );
        assert!(
            error_in("bandwidth = \"25 GB/s\"", "bandwidth = \"0 GB/s\"")
                .starts_with("t.toml:8:13: `0 GB/s` is not a possible bandwidth")
        );
        assert!(error_in("devices = 8", "").contains("needs devices"));
        assert!(error_in("kind = \"nodes\"", "kind = \"nodes\"\nranks = 8").contains("joins 8 ranks, not 4"));
        assert!(error_in("\"nodes\"", "\"switch\"").contains("has no `devices`"));
        let graph = "kind = \"graph\"\nswitches = [\"leaf\"]\n[[link]]\nfrom = 9\nto = \"leaf\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";
        assert!(error(graph).starts_with("t.toml:4:8: rank 9 does not exist"));
        assert!(
            error(&graph.replace("9", "0").replace("to = \"leaf\"", "to = \"leef\""))
                .contains("did you mean `leaf`?")
        );
        assert!(error(&graph.replace("9", "0")).contains("no links lead from rank 1 to rank 0"));
    }

    /// A typing error, a key of another program, a list of NICs and a range of ranks are answered with what to write.
    #[test]
    fn what_others_write_is_answered_with_what_is_written_here() {
        let with = |line: &str| error(&NODES.replace("nics = 4", line));
        assert!(
            with("nodes = 12").contains("unknown field `nodes`; there are as many nodes as the ranks need")
        );
        assert!(with("nic_count = 4").contains("; did you mean `nics`? (there are kind, "));
        assert!(
            error(&NODES.replace("bandwidth = \"25", "bandwith = \"25"))
                .contains("did you mean `bandwidth`?")
        );
        let nics = format!(
            "{}[[nic]]\nbandwidth = \"12 GB/s\"\nlatency = \"1 us\"\n",
            NODES.replace("[nic]", "[[nic]]")
        );
        let said = error(&nics);
        assert!(said.contains("write [nic] once") && said.contains("kind = \"graph\""), "{said}");
        let graph = |switches: &str, from: &str| {
            error(&format!(
                "kind = \"graph\"\nswitches = {switches}\n[[link]]\nfrom = {from}\nto = \"leaf\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n"
            ))
        };
        let said = graph("[\"leaf\"]", "\"0-3\"");
        assert!(
            said.starts_with("t.toml:4:8: ") && said.contains("as a list such as [0, 1, 2, 3]"),
            "{said}"
        );
        assert!(graph("[\"leaf\", \"leaf\"]", "[0, 1, 2, 3]").contains("two switches are called `leaf`"));
    }

    /// A graph has a name for each link: the error lists eight of them, and suggests one of all.
    #[test]
    fn a_link_that_a_graph_does_not_have_is_answered_with_the_nearest() {
        let text = "kind = \"graph\"\nswitches = [\"leaf\"]\n[[link]]\nfrom = [0, 1, 2, 3, 4, 5, 6, 7]\nto = \"leaf\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";
        let topology = Topology::from_toml("t.toml", text, 8).unwrap();
        let said = topology.find_link("rank7>laef[0]").unwrap_err().to_string();
        assert!(said.contains("did you mean `rank7>leaf`?") && said.contains(" and 8 more"), "{said}");
        let said = topology.find_link("up0").unwrap_err().to_string();
        assert!(said.contains("such as rank0>leaf[0]"), "{said}");
        for (link, example) in [("up0", "such as rank0>leaf[0]"), ("rank7>leaf", "such as rank7>leaf[0]")] {
            let rule = format!("slow_link={link}:x10");
            let said = crate::Faults::parse([rule.as_str()], &topology).unwrap_err().to_string();
            assert!(said.contains(example) && !said.contains("up[0]"), "{said}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_both_readings() {
        let bare = NODES.replace("\"25 GB/s\"", "200");
        assert_eq!(
            error(&bare),
            "t.toml:8:13: `200` has no unit; write \"200 GB/s\" (1600 Gb/s) or \"200 Gb/s\" (25 GB/s)"
        );
        let bare = NODES.replace("\"2.7 us\"", "2.7");
        assert!(error(&bare).starts_with("t.toml:9:11: `2.7` has no unit; write for example \"2.7 us\""));
        let bits = NODES.replace("25 GB/s", "200 Gb/s");
        let families = |text: &str| Topology::from_toml("t.toml", text, 4).unwrap().families().to_vec();
        assert_eq!(families(&bits), families(NODES));
    }

    #[test]
    fn keys_that_held_their_units_are_answered_with_what_is_written_now() {
        for (old, new) in WITH_UNITS {
            let section = if old.starts_with("band") || old.starts_with("lat") { "device" } else { "costs" };
            let said = error(&format!("kind = \"switch\"\n[{section}]\n{old} = 2.0\n"));
            assert!(said.starts_with("t.toml:3:1: ") && said.contains(&format!("write {new}")), "{said}");
        }
    }

    #[test]
    fn the_files_that_the_documents_show_are_read() {
        let page = include_str!("../../../docs/TOPOLOGY.md");
        let files: Vec<&str> =
            page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(files.len(), 3);
        files.iter().for_each(|text| drop(Topology::from_toml("own.toml", text, 4).unwrap()));
        let bare = files[0].replace("\"200 Gb/s\"", "200");
        let said = Topology::from_toml("own.toml", &bare, 4).unwrap_err().to_string();
        assert!(page.contains(&said), "{said}");
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error_with_its_name() {
        let error = Topology::named("nowhere/t.toml", 4).unwrap_err().to_string();
        assert!(error.starts_with("nowhere/t.toml: "), "{error}");
    }

    /// A user's own GPU is a device by its name; a known GPU may be named. What is wrong is said at the table's line.
    #[test]
    fn a_file_names_or_describes_its_gpu() {
        let gpu = |text: &str| File::read(text).and_then(|file| file.gpu());
        let own = |rest: &str| {
            format!("{NODES}[gpu]\nname = \"Own X7\"\nf32 = 80\nf16 = 1200.0\nmemory = \"4 TB/s\"\n{rest}")
        };
        let read = gpu(&own("capacity = 96\n")).ok().flatten().unwrap();
        assert_eq!((&*read.name, read.tf32, read.efficiency), ("Own X7", None, 0.4));
        let device = crate::Device::named("own x7_f32").unwrap();
        assert_eq!(
            (device.name, device.peak, device.memory.0),
            ("ownx7_f32", 80_000_000_000_000, 4_000_000_000_000)
        );
        let again = gpu(&own("capacity = 96\n")).ok().flatten().unwrap();
        assert!(std::ptr::eq(read, again), "the same GPU is kept once");
        let known = gpu(&format!("gpu = \"h200\"\n{NODES}")).ok().flatten().unwrap();
        assert_eq!(known.name, "H200");
        for (text, says) in [
            (own(""), "6:1: gpu: missing field `capacity`"),
            (own("capacity = 0\n"), "gpu: capacity = 0 is not possible; give 0.001 to 1000000"),
            (own("capacity = 96\nnvlinks = 3\n"), "gpu: unknown field `nvlinks`"),
            (own("capacity = 96\n").replace("Own X7", "H100"), "`H100` is a GPU that Allfold knows"),
            (own("capacity = 96\n").replace("Own X7", "../x"), "`../x` is no name of a GPU"),
            (own("capacity = 96\n").replace("\"4 TB/s\"", "4"), "`4` has no unit; write \"4 GB/s\""),
            (format!("gpu = \"H10\"\n{NODES}"), "did you mean `H20`?"),
        ] {
            let said = Topology::from_toml("own.toml", &text, 8).unwrap_err().to_string();
            assert!(said.starts_with("own.toml:") && said.contains(says), "{text}: {said}");
        }
    }
}
