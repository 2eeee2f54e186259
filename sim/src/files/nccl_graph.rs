//! NCCL's graph files (`NCCL_GRAPH_DUMP_FILE`): the rings and trees that NCCL's search found on a machine.
//!
//! ```text
//! <graphs version="1">
//!   <graph id="0" pattern="4" nchannels="2" speedintra="12" speedinter="12" typeintra="NVL" ..>
//!     <channel> [<net dev/>] <gpu dev/> <gpu dev/> .. [<net dev/>]        the order of a ring
//! ```

use super::xml::{Element, Source, short};
use crate::Result;

/// The shape of a graph (`src/include/graph.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphPattern {
    /// Pattern 1: a tree with network traffic at two GPUs: one has the parent and one child, the other has the second child.
    BalancedTree,
    /// Pattern 2: a tree with network traffic at two GPUs: one has the parent, the other has both children.
    SplitTree,
    /// Pattern 3: a tree with all network traffic at one GPU.
    Tree,
    /// Pattern 4: a ring.
    Ring,
    /// Pattern 5: through the NVLink switch.
    Nvls,
    /// Pattern 6: every GPU to its own NIC.
    CollnetDirect,
}

/// A graph of the file: one pattern with its channels.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclGraph {
    /// The kind of graph: 0 rings, 1 trees, 2 CollNet chain, 3 NVLS, 4 CollNet direct, 5 NVLSTree.
    pub id: u32,
    /// The pattern of the graph's channels.
    pub pattern: GraphPattern,
    /// The GPUs (by `dev`) of each channel, in the channel's order.
    pub channels: Vec<Vec<u32>>,
    /// The NICs at the ends of each channel, if the channel leaves the node.
    pub nics: Vec<Vec<u32>>,
    /// Bandwidth of one channel inside the node, in GB/s.
    pub inside_gbps: f64,
    /// Bandwidth of one channel across nodes, in GB/s.
    pub across_gbps: f64,
    /// The latency that the NIC declares, in microseconds.
    pub nic_us: f64,
    /// The longest kind of path between GPUs of the node: `NVL`, `PIX`, `SYS`, ...
    pub inside: String,
    /// The kind of path from a GPU to the NIC.
    pub across: String,
    /// Whether all channels visit the GPUs in the same order.
    pub same_channels: bool,
}

impl NcclGraph {
    /// Bandwidth of all channels inside the node, in GB/s; NCCL computes a ring's busbw from it.
    pub fn bandwidth_gb_per_s(&self) -> f64 {
        self.channels.len() as f64 * self.inside_gbps
    }
}

/// All graphs of a graph file.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclGraphs {
    /// The graphs in the order of the file.
    pub graphs: Vec<NcclGraph>,
}

/// The GPUs and the NICs of a channel. A ring's channel must visit the same GPUs as the `first` channel.
fn channel_of(
    source: Source<'_>,
    channel: &Element,
    first: Option<&Vec<u32>>,
) -> Result<(Vec<u32>, Vec<u32>)> {
    if channel.name != "channel" {
        let what = format!("<{}> in <graph>; expected <channel>", short(&channel.name));
        return Err(source.wrong(channel.at, what));
    }
    let devices = |name| channel.all(name).map(|end| source.number(end, "dev", 0u32, 1 << 16)).collect();
    let (gpus, nets): (Result<Vec<u32>>, Result<Vec<u32>>) = (devices("gpu"), devices("net"));
    let (gpus, nets) = (gpus?, nets?);
    if let Some(other) = channel.children.iter().find(|c| c.name != "gpu" && c.name != "net") {
        let what = format!("<{}> in <channel>; expected <gpu> or <net>", short(&other.name));
        return Err(source.wrong(other.at, what));
    }
    let mut sorted = gpus.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(source.wrong(channel.at, format!("the channel visits GPU {} twice", twice[0])));
    }
    if let Some(first) = first {
        let mut expected: Vec<u32> = first.clone();
        expected.sort_unstable();
        if expected != sorted {
            let what = format!("the channel visits GPUs {sorted:?}; the first one visits {expected:?}");
            return Err(source.wrong(channel.at, what));
        }
    }
    Ok((gpus, nets))
}

impl NcclGraphs {
    /// Reads a file's text; `path` names the file in errors.
    ///
    /// # Errors
    /// The line and column of the mistake and what was expected. A channel that visits a GPU twice, and a ring's channel that omits
    /// a GPU, is a mistake, too.
    pub fn read(path: &str, text: &str) -> Result<NcclGraphs> {
        let source = Source { path, text };
        let root = source.parse("graphs")?;
        source.number(&root, "version", 1u32, 1)?;
        let mut graphs: Vec<NcclGraph> = Vec::new();
        for element in &root.children {
            let fail = |what: String| Err(source.wrong(element.at, what));
            if element.name != "graph" {
                return fail(format!("<{}> in <graphs>; expected <graph>", short(&element.name)));
            }
            let id = source.number(element, "id", 0u32, 63)?;
            if graphs.iter().any(|graph| graph.id == id) {
                return fail(format!("graph {id} is listed twice"));
            }
            let pattern = match source.number(element, "pattern", 1u32, 6)? {
                1 => GraphPattern::BalancedTree,
                2 => GraphPattern::SplitTree,
                3 => GraphPattern::Tree,
                4 => GraphPattern::Ring,
                5 => GraphPattern::Nvls,
                _ => GraphPattern::CollnetDirect,
            };
            let (mut channels, mut nics) = (Vec::new(), Vec::new());
            for channel in &element.children {
                let first = channels.first().filter(|_| pattern == GraphPattern::Ring);
                let (gpus, nets) = channel_of(source, channel, first)?;
                channels.push(gpus);
                nics.push(nets);
            }
            let said = source.number(element, "nchannels", 0usize, 1 << 10)?;
            if said != channels.len() {
                return fail(format!("nchannels=\"{said}\"; the graph has {} channels", channels.len()));
            }
            graphs.push(NcclGraph {
                id,
                pattern,
                channels,
                nics,
                inside_gbps: source.number(element, "speedintra", 0.0f64, 1e6)?,
                across_gbps: source.number(element, "speedinter", 0.0f64, 1e6)?,
                nic_us: source.option(element, "latencyinter", 0.0f64, 1e6)?.unwrap_or(0.0),
                inside: element.get("typeintra").unwrap_or("").into(),
                across: element.get("typeinter").unwrap_or("").into(),
                same_channels: element.get("samechannels") == Some("1"),
            });
        }
        Ok(NcclGraphs { graphs })
    }

    /// The graph of the rings; `None` if the file has none.
    pub fn rings(&self) -> Option<&NcclGraph> {
        self.graphs.iter().find(|graph| graph.pattern == GraphPattern::Ring)
    }
}
