//! The matrix that `nvidia-smi topo -m` prints, as a node.
//!
//! ```text
//!         GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
//! GPU0     X      NV12    PXB     0-31            0                NV12: twelve NVLinks     PIX, PXB: below one PCIe switch
//! GPU1    NV12     X      SYS     32-63           1                PHB, NODE: one socket    SYS: across sockets
//! ```
//!
//! The matrix gives neither the GPU nor any speed: these are of the machine or GPU that the caller names, or assumed, with a note.

use super::nccl_topology::{NVLINK_NANOS, NcclTopology, PCI_NANOS};
use super::xml::short;
use crate::machines::node::{LinkKind, Nic, Node};
use crate::machines::presets::{FABRIC_FIGURES, Spec};
use crate::machines::{GpuModel, part};
use crate::{Error, Result};

/// The most rows of a matrix.
const MOST: usize = 1024;
/// GB/s between sockets, one way: AMD's by NCCL's `topo.h`.
const BETWEEN_SOCKETS: f64 = 16.0;
/// More NVLinks than a GPU has: a GPU with more neighbours than this would need shares the links of a switch.
const MOST_LINKS: u32 = 18;

/// A matrix: the names of its rows, and a relation for each pair.
struct Matrix {
    names: Vec<String>,
    cells: Vec<Vec<String>>,
    /// The NUMA node of each row; empty if the matrix does not give it.
    numa: Vec<String>,
}

/// Whether a text has the head of a matrix.
pub(super) fn is_matrix(text: &str) -> bool {
    head(&plain(text)).is_some()
}

/// The text without the terminal's escape sequences.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |all, part| all + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// The number of the head's line, and the names of its columns.
fn head(text: &str) -> Option<(usize, Vec<String>)> {
    text.lines().enumerate().find_map(|(at, line)| {
        let words = line.split_whitespace().take_while(|word| !["CPU", "NUMA"].contains(word));
        let names: Vec<String> = words.map(String::from).collect();
        let gpus = names.first().is_some_and(|name| name == "GPU0")
            && names.iter().all(|name| name.ends_with(|c: char| c.is_ascii_digit()));
        (gpus && names.len() <= MOST).then_some((at, names))
    })
}

impl Matrix {
    fn read(path: &str, text: &str) -> Result<Matrix> {
        let wrong =
            |line: usize, what: String| Err(Error::File { path: format!("{path}:{}", line + 1), what });
        let text = plain(text);
        let Some((at, names)) = head(&text) else {
            return wrong(
                0,
                "no line with the columns GPU0, GPU1, ..; expected what `nvidia-smi topo -m` prints".into(),
            );
        };
        let (mut cells, mut numa) = (Vec::new(), Vec::new());
        for (line, row) in text.lines().enumerate().skip(at + 1) {
            let words: Vec<&str> = row.split_whitespace().collect();
            let (Some(first), Some(name)) = (words.first(), names.get(cells.len())) else { continue };
            if first != name {
                return wrong(line, format!("a row of {}; expected the row of {name}", short(first)));
            }
            let found: Vec<String> =
                words.iter().skip(1).take(names.len()).map(|word| word.to_string()).collect();
            let is_known = |cell: &String| {
                ["X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC"].contains(&cell.as_str()) || nvlinks(cell) > 0
            };
            if let Some(bad) = found.iter().find(|cell| !is_known(cell)) {
                return wrong(
                    line,
                    format!(
                        "`{}` in the row of {name}; expected X, NV1 to NV36, PIX, PXB, PHB, NODE or SYS",
                        short(bad)
                    ),
                );
            }
            if found.len() < names.len() {
                return wrong(
                    line,
                    format!("the row of {name} has {} of {} relations", found.len(), names.len()),
                );
            }
            numa.push(words.get(names.len() + 2).map_or(String::new(), |word| word.to_string()));
            cells.push(found);
        }
        match names.get(cells.len()) {
            Some(name) => wrong(text.lines().count(), format!("the text ends before the row of {name}")),
            None => Ok(Matrix { names, cells, numa }),
        }
    }

    fn cell(&self, a: usize, b: usize) -> &str {
        self.cells.get(a).and_then(|row| row.get(b)).map_or("", String::as_str)
    }

    fn is_gpu(&self, at: usize) -> bool {
        self.names.get(at).is_some_and(|name| name.starts_with("GPU"))
    }

    /// The least row that is together with each row, by one of `relations` or by others in between.
    fn together(&self, relations: &[&str], by_numa: bool) -> Vec<usize> {
        let all = self.names.len();
        let mut least: Vec<usize> = (0..all).collect();
        let alike = |a: usize, b: usize| {
            let known = |at: usize| self.numa.get(at).filter(|numa| numa.parse::<u32>().is_ok());
            relations.contains(&self.cell(a, b)) || by_numa && known(a).is_some() && known(a) == known(b)
        };
        for (a, b) in (0..all).flat_map(|a| (0..a).map(move |b| (a, b))).filter(|(a, b)| alike(*a, *b)) {
            let (from, to) = (least[a].max(least[b]), least[a].min(least[b]));
            least.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
        }
        least
    }
}

/// The number of NVLinks in a cell such as `NV12`; 0 in others.
fn nvlinks(cell: &str) -> u32 {
    cell.strip_prefix("NV")
        .and_then(|count| count.parse().ok())
        .filter(|count| (1..=36).contains(count))
        .unwrap_or(0)
}

/// Reads the text of a matrix; `path` names the file in errors. `gpu` gives the speeds of links, `spec` that of NICs.
///
/// # Errors
/// The line of the mistake and what was expected.
pub(super) fn read(path: &str, text: &str, gpu: Option<&GpuModel>, spec: &Spec) -> Result<NcclTopology> {
    let matrix = Matrix::read(path, text)?;
    let rows = matrix.names.len();
    let devices: Vec<usize> = (0..rows).filter(|at| matrix.is_gpu(*at)).collect();
    let mut notes = Vec::new();
    let mut say = |note: String| notes.push(format!("{path}: {note}"));
    let pcie = gpu.map_or(24.0, |gpu| f64::from(gpu.pcie.links) * gpu.pcie.gb_per_s);
    if gpu.is_none() {
        say("the matrix does not name the GPU: 24 GB/s of PCIe assumed; name a GPU or a machine, as in ,machine=dgx-a100".into());
    }
    let mut node = Node {
        name: path.into(),
        devices: devices.len() as u32,
        places: Vec::new(),
        links: Vec::new(),
        nics: Vec::new(),
        network_nanos: FABRIC_FIGURES[0].nanos,
    };
    let sockets = matrix.together(&["PIX", "PXB", "PHB", "NODE"], true);
    let switches = matrix.together(&["PIX", "PXB"], false);
    let mut roots: Vec<(usize, u32)> = Vec::new();
    for &socket in &sockets {
        if !roots.iter().any(|(known, _)| *known == socket) {
            let place = node.add(format!("cpu{}", roots.len()));
            for &(_, other) in &roots {
                node.join(place, other, BETWEEN_SOCKETS, PCI_NANOS, LinkKind::Pci);
            }
            roots.push((socket, place));
        }
    }
    let mut known: Vec<(usize, u32)> = Vec::new();
    let mut home = |node: &mut Node, row: usize| {
        let root = roots.iter().find(|(socket, _)| *socket == sockets[row]).map_or(0, |(_, place)| *place);
        let group = switches[row];
        if switches.iter().filter(|other| **other == group).count() < 2 {
            return root;
        }
        if let Some((_, place)) = known.iter().find(|(other, _)| *other == group) {
            return *place;
        }
        let place = node.add(format!("pci{}", known.len()));
        node.join(place, root, pcie, PCI_NANOS, LinkKind::Pci);
        known.push((group, place));
        place
    };
    for (device, &row) in (0..).zip(&devices) {
        let at = home(&mut node, row);
        node.join(device, at, pcie, PCI_NANOS, LinkKind::Pci);
    }
    for row in (0..rows).filter(|row| !matrix.is_gpu(*row)) {
        let place = home(&mut node, row);
        let gbit_per_s = spec.nic_bandwidth.map_or(10.0, |speed| speed.gbit_per_s());
        node.nics.push(Nic { place, gbit_per_s, gb_per_s: pcie.max(gbit_per_s / 8.0) });
    }
    if !node.nics.is_empty() && spec.nic_bandwidth.is_none() {
        let count = node.nics.len();
        say(format!(
            "{count} NICs without a speed: 10 Gb/s, as NCCL assumes; give it, as in ,nic-bandwidth=400Gb/s"
        ));
    }
    join_nvlinks(&matrix, &devices, gpu, &mut node, &mut say);
    Ok(NcclTopology { node, notes, sm: None, gpu: gpu.map(|gpu| gpu.name.clone()) })
}

/// Adds the NVLinks: between pairs, or all to one switch if more of them end at a GPU than a GPU has.
fn join_nvlinks(
    matrix: &Matrix,
    devices: &[usize],
    gpu: Option<&GpuModel>,
    node: &mut Node,
    say: &mut impl FnMut(String),
) {
    let count = |a: usize, b: usize| nvlinks(matrix.cell(devices[a], devices[b]));
    let all = devices.len();
    let most = (0..all).map(|a| (0..all).map(|b| count(a, b)).sum::<u32>()).max().unwrap_or(0);
    if most == 0 {
        return;
    }
    let each = match gpu.and_then(|gpu| gpu.nvlink.or(gpu.bridge)) {
        Some(port) => port.gb_per_s,
        None => {
            // NVLink 4 alone has 18 links of a GPU in matrices that name 18; older ones have 20 GB/s a link by NCCL's topo.h.
            let each = if (0..all).any(|b| count(0, b) > 12) { 20.6 } else { 20.0 };
            say(format!("an NVLink is assumed to have {each} GB/s one way"));
            each
        }
    };
    if most <= MOST_LINKS {
        for (a, b) in (0..all).flat_map(|a| (0..a).map(move |b| (b, a))).filter(|(a, b)| count(*a, *b) > 0) {
            node.join(a as u32, b as u32, f64::from(count(a, b)) * each, NVLINK_NANOS, LinkKind::NvLink);
        }
        return;
    }
    let switch = node.add(part::SWITCH);
    for device in 0..all {
        let links = (0..all).map(|other| count(device, other)).max().unwrap_or(0);
        node.join(device as u32, switch, f64::from(links) * each, NVLINK_NANOS / 2, LinkKind::NvLink);
    }
}
