//! NCCL's topology files: `NCCL_TOPO_FILE`, and what `NCCL_TOPO_DUMP_FILE` writes.
//!
//! ```text
//! <system version="1">
//!   <cpu numaid arch vendor familyid modelid>          speed between sockets by its model
//!     <pci busid class link_speed link_width>          a switch (0x0604), a GPU (0x0302), a NIC (0x0200, 0x0207)
//!       <gpu dev sm> <nvlink target count tclass/>     to another GPU by its bus, or to a switch (0x0680)
//!       <nic> <net dev speed latency/>                 Mb/s
//! ```
//!
//! Files of cloud providers contain the PCI tree only, because NCCL finds the rest on the machine itself. What a file lacks is
//! taken from a named machine, and the reader notes each such item. Link speeds are those that NCCL assumes (`src/graph/topo.h`,
//! `topo.cc`).

use super::xml::{Element, Source, short};
use crate::Result;
use crate::machines::node::{LinkKind, Nic, Node};
use crate::machines::presets::{FABRIC_FIGURES, Preset, Spec};
use crate::machines::{GpuModel, part};
use std::collections::BTreeMap;

/// The node that an NCCL topology file describes.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclTopology {
    /// The node as a graph of links.
    pub node: Node,
    /// What the reader completed, assumed or left out, one line per item.
    pub notes: Vec<String>,
    /// The compute capability of the GPUs, such as 90; `None` if the file does not give it.
    pub sm: Option<u32>,
    /// The GPU in the table of GPUs, where the file or the caller names it.
    pub gpu: Option<String>,
}

const MOST_DEVICES: usize = 1024;
pub(super) const PCI_NANOS: u64 = 250;
pub(super) const NVLINK_NANOS: u64 = 600;

#[derive(Default)]
struct Found<'a> {
    /// Each GPU: bus id, parent place in the PCI tree, GB/s, and its <gpu> element if the file has one.
    gpus: Vec<(&'a str, Place, f64, Option<&'a Element>)>,
    nics: Vec<(Place, Option<f64>, f64)>,
    /// Each PCI link: the lower place, the upper place, GB/s.
    links: Vec<(Place, Place, f64)>,
    places: Vec<String>,
    latency_us: f64,
    /// The number of devices that have neither a class nor children.
    nameless: usize,
    slow_links: usize,
}

/// A place of the node that is not a GPU: a socket or a PCI switch. Such places are numbered from 0, because [`Node`] numbers
/// places after the GPUs, whose number is not known while reading.
#[derive(Clone, Copy, PartialEq)]
struct Place(usize);

impl NcclTopology {
    /// Reads the text of a topology file; `path` names the file in errors. What the file lacks is taken from `machine`.
    ///
    /// # Errors
    /// The line and column of the mistake and what was expected; a `machine` with another number of GPUs.
    pub fn read(path: &str, text: &str, machine: Option<&Preset>) -> Result<NcclTopology> {
        let source = Source { path, text };
        let system = source.parse("system")?;
        // RCCL writes version 2.
        source.number(&system, "version", 1u32, 2)?;
        let (mut found, mut notes) = (Found::default(), Vec::new());
        let mut sockets: Vec<(Place, f64)> = Vec::new();
        for child in &system.children {
            if child.name != "cpu" {
                return Err(
                    source.wrong(child.at, format!("<{}> in <system>; expected <cpu>", short(&child.name)))
                );
            }
            source.option(child, "numaid", -1i64, 1 << 20)?;
            let place = found.place(format!("cpu{}", sockets.len()));
            sockets.push((place, between(source, child)?));
            found.devices(source, child, place, f64::INFINITY, 0)?;
        }
        if sockets.is_empty() {
            return Err(source.wrong(system.at, "<system> has no <cpu>; expected one for each socket"));
        }
        found.build(source, &system, &sockets, machine, &mut notes)
    }
}

/// GB/s between CPU sockets in one direction, as NCCL assumes it (`topo.h`).
fn between(source: Source<'_>, cpu: &Element) -> Result<f64> {
    let family = source.option(cpu, "familyid", 0u32, 1 << 20)?.unwrap_or(0);
    let model = source.option(cpu, "modelid", 0u32, 1 << 20)?.unwrap_or(0);
    Ok(match (cpu.get("arch").unwrap_or("x86_64"), cpu.get("vendor").unwrap_or("")) {
        ("arm64", _) => 6.0,
        ("ppc64", _) => 32.0,
        (_, "AuthenticAMD") => 16.0,
        (_, "GenuineIntel") if family == 6 && model >= 207 => 40.0,
        (_, "GenuineIntel") if family == 6 && model >= 143 => 22.0,
        (_, "GenuineIntel") if family == 6 && model >= 85 => 10.0,
        _ => 6.0,
    })
}

/// GB/s of a PCI link in one direction: width x lane speed, as NCCL computes it (`topo.h`); `None` if the file lacks either.
fn pci_gbps(source: Source<'_>, pci: &Element) -> Result<Option<f64>> {
    let width = source.option(pci, "link_width", 0u32, 64)?;
    let speed = pci.get("link_speed").unwrap_or("").trim();
    let transfers = speed.split_whitespace().next().unwrap_or("");
    let lane = match transfers.trim_end_matches(".0") {
        "" | "Unknown" => None,
        "2.5" => Some(15.0),
        "5" => Some(30.0),
        "8" => Some(60.0),
        "16" => Some(120.0),
        "32" => Some(240.0),
        "64" => Some(480.0),
        _ => {
            let what =
                format!("<pci> has link_speed=\"{}\"; expected 2.5, 5, 8, 16, 32 or 64 GT/s", short(speed));
            return Err(source.wrong(pci.at, what));
        }
    };
    Ok(lane.zip(width.filter(|width| *width > 0)).map(|(lane, width)| f64::from(width) * lane / 80.0))
}

/// GB/s of one NVLink in one direction, by compute capability `sm` (`topo.h`).
pub(super) fn nvlink_gb_per_s(sm: u32) -> f64 {
    match sm {
        0..70 => 18.0,
        86 | 89 => 12.0,
        70..90 => 20.0,
        90..100 => 20.6,
        _ => 40.1,
    }
}

/// An AMD GPU by its architecture, as RCCL writes it: `gfx942`, or `908`.
fn gfx(gcn: &str) -> Option<&'static GpuModel> {
    GpuModel::called(match gcn.trim_start_matches("gfx").split(':').next()? {
        "908" => "MI100",
        "90a" | "910" => "MI250X",
        "940" | "941" | "942" => "MI300X",
        "950" => "MI355X",
        _ => return None,
    })
}

/// GB/s of an xGMI link in one direction, of an AMD GPU that is not in the table (RCCL's `topo.h`, Vega).
const OLD_XGMI: f64 = 24.0;

impl<'a> Found<'a> {
    fn place(&mut self, name: String) -> Place {
        self.places.push(name);
        Place(self.places.len() - 1)
    }

    /// Reads the children of `parent` and everything below them.
    fn devices(
        &mut self,
        source: Source<'_>,
        parent: &'a Element,
        place: Place,
        gb_per_s: f64,
        depth: u32,
    ) -> Result<()> {
        for child in &parent.children {
            match child.name.as_str() {
                "pci" => self.pci(source, child, place, depth)?,
                "nic" => self.nic(source, child, place, gb_per_s)?,
                "gpu" | "net" | "pcilink" | "c2c" | "gin" | "rma" => {}
                other => {
                    let what =
                        format!("<{}> in <{}>; expected pci, nic, net or gpu", short(other), parent.name);
                    return Err(source.wrong(child.at, what));
                }
            }
        }
        Ok(())
    }

    fn pci(&mut self, source: Source<'_>, pci: &'a Element, place: Place, depth: u32) -> Result<()> {
        let Some(bus) = pci.get("busid").filter(|bus| !bus.is_empty()) else {
            return Err(source.wrong(pci.at, "<pci> has no `busid`; expected one such as 0000:07:00.0"));
        };
        let class = pci.get("class").unwrap_or("");
        let gb_per_s = pci_gbps(source, pci)?.unwrap_or_else(|| {
            self.slow_links += 1;
            12.0
        });
        let gpu = pci.all("gpu").next();
        // AMD's GPUs are processing accelerators, or displays of another kind.
        let is_gpu =
            ["0x0302", "0x0300", "0x1200", "0x0380"].iter().any(|of_gpus| class.starts_with(of_gpus));
        if gpu.is_some() || is_gpu {
            if self.gpus.len() >= MOST_DEVICES {
                return Err(source.wrong(pci.at, format!("more than {MOST_DEVICES} GPUs in a node")));
            }
            let c2c = gpu.and_then(|gpu| gpu.all("c2c").next());
            let c2c = match c2c {
                Some(c2c) => {
                    let each = source.number(c2c, "bw", 0.0f64, 1e9)?;
                    each * f64::from(source.option(c2c, "count", 1u32, 1024)?.unwrap_or(1)) / 1000.0
                }
                None => 0.0,
            };
            self.gpus.push((bus, place, gb_per_s.max(c2c), gpu));
            return Ok(());
        }
        let network = class.starts_with("0x0200") || class.starts_with("0x0207");
        if network && pci.all("nic").next().is_none() {
            self.nics.push((place, None, gb_per_s));
            return Ok(());
        }
        if class.is_empty() && pci.children.is_empty() {
            self.nameless += 1;
            return Ok(());
        }
        if network {
            return self.devices(source, pci, place, gb_per_s, depth + 1);
        }
        let switch = self.place(format!("pci{}", self.places.len()));
        self.links.push((switch, place, gb_per_s));
        self.devices(source, pci, switch, gb_per_s, depth + 1)
    }

    fn nic(&mut self, source: Source<'_>, nic: &'a Element, place: Place, gb_per_s: f64) -> Result<()> {
        for net in nic.all("net") {
            // The speed is in Mb/s; NCCL assumes 10 Gb/s if the file gives none.
            let speed = source.option(net, "speed", 0.0f64, 1e8)?.filter(|speed| *speed > 0.0);
            if let Some(latency) = source.option(net, "latency", 0.0f64, 1e6)? {
                self.latency_us = self.latency_us.max(latency);
            }
            self.nics.push((place, Some(speed.unwrap_or(10_000.0) / 1000.0), gb_per_s.min(1e6)));
        }
        Ok(())
    }

    fn build(
        self,
        source: Source<'_>,
        system: &Element,
        sockets: &[(Place, f64)],
        machine: Option<&Preset>,
        notes: &mut Vec<String>,
    ) -> Result<NcclTopology> {
        let path = source.path;
        let mut say = |note: String| notes.push(format!("{path}: {note}"));
        let node_of = |preset: &Preset| preset.node(&Spec::read(&preset.name)?);
        let complete = machine.map(|preset| Ok((preset, node_of(preset)?))).transpose()?;
        if self.gpus.is_empty() {
            // If the file lists no GPU, for example because its devices have no class, the whole node is taken from the machine.
            let Some((preset, node)) = complete else {
                let what = format!(
                    "no GPU: no <gpu> and no <pci> of class 0x0302 ({} have no class); name the machine, as in {path},machine=g5",
                    self.nameless
                );
                return Err(source.wrong(system.at, what));
            };
            say(format!("lists no GPU; the whole node is taken from {}", preset.name));
            return Ok(NcclTopology { node, notes: std::mem::take(notes), sm: None, gpu: None });
        }
        let devices = self.gpus.len() as u32;
        if let Some((preset, _)) = complete.as_ref().filter(|(preset, _)| preset.devices != devices) {
            let what =
                format!("{devices} GPUs; {} has {}: name another machine", preset.name, preset.devices);
            return Err(source.wrong(system.at, what));
        }
        let mut node = Node {
            name: path.into(),
            devices,
            places: self.places.clone(),
            links: Vec::new(),
            nics: Vec::new(),
            network_nanos: FABRIC_FIGURES[0].nanos + (self.latency_us * 1000.0) as u64,
        };
        let at = |place: Place| devices + place.0 as u32;
        for (i, (a, from)) in sockets.iter().enumerate() {
            for (b, to) in &sockets[i + 1..] {
                node.join(at(*a), at(*b), from.min(*to), PCI_NANOS, LinkKind::Pci);
            }
        }
        for (a, b, gb_per_s) in &self.links {
            node.join(at(*a), at(*b), *gb_per_s, PCI_NANOS, LinkKind::Pci);
        }
        for (device, (_, place, gb_per_s, _)) in (0..).zip(&self.gpus) {
            node.join(device, at(*place), *gb_per_s, PCI_NANOS, LinkKind::Pci);
        }
        if self.slow_links > 0 {
            say(format!(
                "{} PCI links do not say how fast they are: 12 GB/s assumed, as NCCL does",
                self.slow_links
            ));
        }
        let described = self.gpus.iter().filter(|gpu| gpu.3.is_some()).count();
        if described == 0 {
            say(format!("lists {devices} GPUs as PCI devices only, in the order of the file"));
        }
        let nvlinks = self.nvlinks(source, &mut node, &mut say)?;
        match &complete {
            _ if nvlinks > 0 => {}
            Some((preset, from)) if from.links.iter().any(|wire| wire.kind == LinkKind::NvLink) => {
                say(format!("lists no NVLink that joins two GPUs; completed from {}", preset.name));
                borrow_nvlinks(from, &mut node);
            }
            Some((preset, _)) => say(format!("lists no NVLink, and {} has none", preset.name)),
            None => say("lists no NVLink that joins two GPUs; complete it with ,machine=NAME".into()),
        }
        self.attach_nics(&mut node, complete.as_ref(), sockets, &mut say);
        if let Some((_, from)) = &complete {
            node.network_nanos = from.network_nanos;
        }
        let sm = self.gpus.iter().find_map(|gpu| gpu.3?.get("sm")?.parse().ok());
        let amd = self.gpus.iter().find_map(|gpu| gpu.3?.get("gcn")).map(gfx);
        let gpu = amd.flatten().map(|gpu| gpu.name.clone());
        Ok(NcclTopology { node, notes: std::mem::take(notes), sm: sm.filter(|_| amd.is_none()), gpu })
    }

    /// Adds the file's NICs to the node; if the file has none, those of the machine that completes the file.
    fn attach_nics(
        &self,
        node: &mut Node,
        complete: Option<&(&Preset, Node)>,
        sockets: &[(Place, f64)],
        say: &mut impl FnMut(String),
    ) {
        let devices = node.devices;
        let at = |place: Place| devices + place.0 as u32;
        let unknown = self.nics.iter().filter(|nic| nic.1.is_none()).count();
        let each = complete.map_or(10.0, |(preset, _)| preset.nics.bandwidth.gbit_per_s());
        if unknown > 0 {
            let whence =
                complete.map_or("as NCCL assumes".into(), |(preset, _)| format!("from {}", preset.name));
            say(format!("{unknown} NICs without a speed: {each} Gb/s, {whence}"));
        }
        for (place, gbit_per_s, gb_per_s) in &self.nics {
            node.nics.push(Nic {
                place: at(*place),
                gbit_per_s: gbit_per_s.unwrap_or(each),
                gb_per_s: *gb_per_s,
            });
        }
        if let (true, Some((preset, from))) = (node.nics.is_empty(), complete) {
            say(format!(
                "lists no NIC; {} of {} Gb/s from {}",
                from.nics.len(),
                preset.nics.bandwidth.gbit_per_s(),
                preset.name
            ));
            let spread = |nic: usize| sockets[nic * sockets.len() / from.nics.len().max(1)].0;
            node.nics = from
                .nics
                .iter()
                .enumerate()
                .map(|(i, nic)| Nic { place: at(spread(i)), ..nic.clone() })
                .collect();
        }
    }

    /// Adds the NVLinks to NVLink switches and those between two GPUs of the file, and notes the NVLinks that lead to no device.
    /// Returns the number of GPUs that NVLinks connect to a switch plus the number of pairs that they connect directly.
    fn nvlinks(&self, source: Source<'_>, node: &mut Node, say: &mut impl FnMut(String)) -> Result<usize> {
        let mut pairs: BTreeMap<(u32, u32), (u32, f64)> = BTreeMap::new();
        let (mut switched, mut lost, mut own) = (BTreeMap::<u32, (u32, f64)>::new(), 0, 0);
        for (device, (bus, .., gpu)) in (0u32..).zip(&self.gpus) {
            let Some(gpu) = gpu else { continue };
            source.option(gpu, "dev", 0u32, 1 << 16)?;
            let each = nvlink_gb_per_s(source.option(gpu, "sm", 10u32, 1000)?.unwrap_or(80));
            let mut mine: BTreeMap<u32, u32> = BTreeMap::new();
            let each = gpu.get("gcn").map_or(each, |gcn| {
                gfx(gcn).and_then(|gpu| gpu.nvlink).map_or(OLD_XGMI, |port| port.gb_per_s)
            });
            for link in gpu.all("nvlink").chain(gpu.all("xgmi")) {
                let count = source.number(link, "count", 1u32, 1024)?;
                let target = link.get("target").unwrap_or("");
                if link.get("tclass").is_some_and(|class| class.starts_with("0x0680")) {
                    let entry = switched.entry(device).or_insert((0, each));
                    entry.0 = entry.0.saturating_add(count);
                    continue;
                }
                match self.gpus.iter().position(|(other, ..)| *other == target) {
                    _ if target == *bus => own += 1,
                    None => lost += 1,
                    Some(other) => {
                        let sum = mine.entry(other as u32).or_default();
                        *sum = sum.saturating_add(count);
                    }
                }
            }
            // Both ends list the NVLinks between them; the larger count of the two is taken.
            for (other, count) in mine {
                let entry = pairs.entry((device.min(other), device.max(other))).or_insert((0, each));
                *entry = (entry.0.max(count), entry.1.min(each));
            }
        }
        if own > 0 {
            say(format!("{own} NVLinks lead from a GPU to itself, as virtual machines show them; left out"));
        }
        if lost > 0 {
            say(format!("{lost} NVLinks lead to a device that the file does not have; left out"));
        }
        for (&(a, b), &(count, each)) in &pairs {
            node.join(a, b, f64::from(count) * each, NVLINK_NANOS, LinkKind::NvLink);
        }
        if !switched.is_empty() {
            let switch = node.add(part::SWITCH);
            for (&device, &(count, each)) in &switched {
                node.join(device, switch, f64::from(count) * each, NVLINK_NANOS / 2, LinkKind::NvLink);
            }
        }
        Ok(pairs.len() + switched.len())
    }
}

/// Copies the NVLinks of one node to another node with as many devices.
fn borrow_nvlinks(from: &Node, to: &mut Node) {
    let mut switches: BTreeMap<u32, u32> = BTreeMap::new();
    for wire in from.links.iter().filter(|wire| wire.kind == LinkKind::NvLink) {
        let mut end = |place: u32, to: &mut Node| match place < from.devices {
            true => place,
            false => *switches.entry(place).or_insert_with(|| to.add(from.place(place))),
        };
        let (a, b) = (end(wire.a, to), end(wire.b, to));
        to.join(a, b, wire.gb_per_s, wire.nanos, wire.kind);
    }
}
