//! Machine presets: the hardware inside a node and the network between nodes, as data with sources.
//!
//! ```text
//! presets/dgx-a100.toml --> Preset --> Node (a graph) --> Topology of as many nodes as the ranks take
//! ```
//!
//! The files state nominal figures and those that NCCL assumes. Their figures are not fitted (latencies and shares of fabrics are,
//! see [`FABRIC_FIGURES`]). The files are compiled into the program.

mod fabric;
mod reckoned;
mod spec;
#[cfg(test)]
mod tests;

pub use fabric::{FABRIC_FIGURES, FabricFigures};
pub use spec::OPTIONS;
pub(crate) use spec::Spec;

use super::node::{LinkKind, Nic, Node};
use super::part;
use crate::quantity::Bandwidth;
use crate::{Error, Result, Topology, expected, suggest};
use serde::Deserialize;

macro_rules! machines {
    ($($name:literal)*) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!($name, ".toml")))),*];
    };
}

machines! {
    "dgx1-v100" "dgx2" "dgx-a100" "hgx-h100" "hgx-h200" "b200" "b300" "gb200-nvl72" "gb300-nvl72" "gh200x4" "a100x4"
    "pcie8" "pcie8-no-p2p" "l40s" "rtx-pro-6000" "mi300x" "mi355x"
    "p3dn" "p4d" "p5" "g5" "nd-a100-v4" "nd-h100-v5" "ndv2" "ncv4" "a3-high" "a3-mega" "a3-ultra" "a4"
}

/// A machine preset, as its file states it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// The preset's name, which is its file's name.
    #[serde(skip)]
    pub name: String,
    /// The machine's title for tables and help texts.
    pub title: String,
    /// The machine's GPU, a name in [`super::GpuModel::all`].
    pub gpu: String,
    /// The number of GPUs of a node.
    pub devices: u32,
    /// Other names by which the preset is found.
    #[serde(default)]
    pub also: Vec<String>,
    /// The machine's NVLinks; `None` for a machine without NVLink.
    pub nvlink: Option<NvLink>,
    /// The machine's PCI Express.
    pub pcie: Pcie,
    /// The NICs of a node.
    pub nics: NicSpec,
}

/// NVLink of a machine: links into switches, or between pairs of devices.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// The number of links from each device into switches.
    pub switched: Option<u32>,
    /// Links between pairs: two devices and the number of links between them.
    #[serde(default)]
    pub mesh: Vec<[u32; 3]>,
    /// The bandwidth of one link in one direction that collectives can use.
    pub bandwidth: Bandwidth,
    /// The bandwidth of one link in one direction according to the datasheet.
    pub datasheet: Bandwidth,
    /// The source of these figures.
    pub source: String,
}

impl NvLink {
    /// The number of links of a device: into switches, or to other devices.
    pub fn links(&self) -> u32 {
        let to_others = self.mesh.iter().filter(|[a, b, _]| *a == 0 || *b == 0).map(|[_, _, links]| links);
        self.switched.unwrap_or_else(|| to_others.sum())
    }

    /// The number of links that each of the first `devices` devices has at least to the others of them; 0 if links do not join all.
    pub(crate) fn among(&self, devices: u32) -> u32 {
        self.switched.unwrap_or_else(|| part::least_links(&self.mesh, devices))
    }
}

/// PCI Express of a machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Bandwidth of 16 lanes in one direction.
    pub bandwidth: Bandwidth,
    /// The number of devices below one PCI switch; 0 if each device has a root port of its own.
    pub devices_per_switch: u32,
    /// The number of CPU sockets (or NUMA nodes).
    pub sockets: u32,
    /// Bandwidth between sockets in one direction.
    pub between_sockets: Bandwidth,
    /// Whether devices may write to each other's memory.
    #[serde(default = "yes")]
    pub p2p: bool,
    /// The source of these figures.
    pub source: String,
}

/// NICs of a machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// The number of NICs of a node.
    pub count: u32,
    /// Bandwidth of each NIC in one direction.
    pub bandwidth: Bandwidth,
    /// The fabric that connects the NICs, a name in [`FABRIC_FIGURES`].
    pub fabric: String,
    /// The source of these figures.
    pub source: String,
}

fn yes() -> bool {
    true
}

/// Latencies of one link. NCCL counts 0.6 us for a step over NVLink, and 1.0 us for a step over PCI Express (tuning.cc, LL), which
/// has four links between devices below different switches of a socket.
const NVLINK_NANOS: u64 = 600;
const PCI_NANOS: u64 = 250;
/// Bandwidth of a socket's memory for all staged traffic, where devices may not write to each other, in GB/s one way: 8 RTX 2080 Ti
/// reach 2.98 GB/s of busbw (published nccl-tests run) with four flows per socket.
const STAGED_GB_PER_S: f64 = 12.0;

impl Preset {
    /// All machine presets, in the order of help texts.
    ///
    /// # Errors
    /// No error in a build whose tests passed, because the files are compiled in.
    pub fn all() -> Result<Vec<Preset>> {
        FILES.iter().map(|(name, text)| Preset::parse(name, text)).collect()
    }

    /// The names of all presets, without their other names.
    pub fn names() -> Vec<&'static str> {
        FILES.iter().map(|(name, _)| *name).collect()
    }

    /// The preset called `name`, which may be one of its other names.
    ///
    /// # Errors
    /// No preset has that name; the error suggests the nearest name.
    pub fn named(name: &str) -> Result<Preset> {
        match Preset::find(name)? {
            Some(preset) => Ok(preset),
            None => Err(Error::Topology(suggest::unknown("machine", name, &Preset::names()))),
        }
    }

    /// The preset for a text such as `dgx-a100,nics=4`, with the devices and NICs that the text's options give. Switches above the
    /// nodes are no part of a preset.
    ///
    /// # Errors
    /// An unknown machine, fabric or option; more devices than a node has.
    pub fn with_options(text: &str) -> Result<Preset> {
        let spec = Spec::read(text)?;
        let mut preset = Preset::named(&spec.name)?.linked(&spec)?;
        preset.devices = preset.node(&spec)?.devices;
        preset.nics.count = spec.nics.unwrap_or(preset.nics.count);
        preset.nics.bandwidth = spec.nic_bandwidth.unwrap_or(preset.nics.bandwidth);
        if let Some(name) = &spec.fabric {
            preset.nics.fabric = fabric::named(name)?.name.into();
        }
        Ok(preset)
    }

    pub(crate) fn find(name: &str) -> Result<Option<Preset>> {
        let name = name.to_ascii_lowercase().replace('_', "-");
        if let Some((found, text)) = FILES.iter().find(|(known, _)| *known == name) {
            return Preset::parse(found, text).map(Some);
        }
        Ok(Preset::all()?.into_iter().find(|preset| preset.also.contains(&name)))
    }

    fn parse(name: &str, text: &str) -> Result<Preset> {
        let preset: Preset = toml::from_str(text)
            .map_err(|error| Error::Topology(format!("{name}: {}", expected(error.message()))))?;
        Ok(Preset { name: name.into(), ..preset })
    }

    /// The topology of `ranks` ranks for a text such as `hgx-h100:64,fat-tree=2:1`. `None` if no machine has that name.
    pub(crate) fn topology_of(text: &str, ranks: u32) -> Result<Option<Topology>> {
        let head = text.split([':', ',']).next().unwrap_or_default();
        let Some(preset) = Preset::find(head)? else { return Ok(None) };
        let spec = Spec::read(text)?;
        let preset = preset.linked(&spec)?;
        let node = preset.node(&spec)?;
        if let Some(nodes) =
            spec.nodes.filter(|nodes| u64::from(ranks) > u64::from(*nodes) * u64::from(node.devices))
        {
            let most = u64::from(nodes) * u64::from(node.devices);
            return Err(Error::Topology(format!(
                "{ranks} ranks are more than the {most} GPUs of `{text}`; name more nodes, or leave their number out"
            )));
        }
        let notes = spec.switch_notes(text, ranks.div_ceil(node.devices.max(1)));
        Ok(Some(node.topology(ranks, spec.fabrics)?.renamed(text).with_notes(notes)))
    }

    /// This machine with the NVLink bandwidth that `spec` gives.
    fn linked(mut self, spec: &Spec) -> Result<Preset> {
        let Some(all) = spec.nvlink_bandwidth else { return Ok(self) };
        match &mut self.nvlink {
            Some(nvlink) => nvlink.bandwidth = all.shared(nvlink.links()),
            None => {
                return Err(Error::Topology(format!(
                    "{} has no NVLink; leave nvlink-bandwidth out",
                    self.name
                )));
            }
        }
        Ok(self)
    }

    /// One node of the machine, with the options of `spec` applied, except that of NVLink.
    pub(crate) fn node(&self, spec: &Spec) -> Result<Node> {
        let devices = spec.devices.unwrap_or(self.devices);
        if devices > self.devices {
            let has = self.devices;
            return Err(Error::Topology(format!("{} has {has} devices a node, not {devices}", self.name)));
        }
        spec.check_nics(devices)?;
        let fabric = fabric::named(spec.fabric.as_deref().unwrap_or(&self.nics.fabric))?;
        let mut node = Node {
            name: self.name.clone(),
            devices,
            places: Vec::new(),
            links: Vec::new(),
            nics: Vec::new(),
            network_nanos: fabric.nanos,
        };
        let pcie = self.pcie.bandwidth.gb_per_s();
        let sockets = self.pcie.sockets.clamp(1, self.devices);
        let roots: Vec<u32> = (0..sockets).map(|socket| node.add(format!("cpu{socket}"))).collect();
        for pair in roots.windows(2) {
            node.join(pair[0], pair[1], self.pcie.between_sockets.gb_per_s(), PCI_NANOS, LinkKind::Pci);
        }
        if let (Some(&first), Some(&last), 3..) = (roots.first(), roots.last(), sockets) {
            node.join(last, first, self.pcie.between_sockets.gb_per_s(), PCI_NANOS, LinkKind::Pci);
        }
        let homes = self.pci(&mut node, &roots);
        self.nvlinks(&mut node);
        let (count, nic_bandwidth) =
            (spec.nics.unwrap_or(self.nics.count), spec.nic_bandwidth.unwrap_or(self.nics.bandwidth));
        for nic in 0..count {
            // NICs are spread over the places of devices, with consecutive NICs at the same place.
            let at = (u64::from(nic) * homes.len() as u64 / u64::from(count)) as usize;
            let place = homes.get(at).copied().unwrap_or(devices);
            node.nics.push(Nic {
                place,
                gbit_per_s: nic_bandwidth.gbit_per_s() * fabric.share,
                gb_per_s: pcie.max(nic_bandwidth.gb_per_s()),
            });
        }
        Ok(node)
    }

    /// Attaches every device to PCI Express and returns the places that NICs may be attached to: the switches of the devices, or
    /// their sockets if there are no switches.
    fn pci(&self, node: &mut Node, roots: &[u32]) -> Vec<u32> {
        let (per, pcie) = (self.pcie.devices_per_switch, self.pcie.bandwidth.gb_per_s());
        let socket =
            |device: u32| roots[(u64::from(device) * roots.len() as u64 / u64::from(self.devices)) as usize];
        let mut homes = Vec::new();
        for device in 0..node.devices {
            if per == 0 {
                let each = (self.devices / roots.len() as u32).max(1);
                let staged = if self.pcie.p2p { pcie } else { STAGED_GB_PER_S / f64::from(each) };
                node.join(device, socket(device), pcie.min(staged), 2 * PCI_NANOS, LinkKind::Pci);
                homes.push(socket(device));
                continue;
            }
            if device % per == 0 {
                let switch = node.add(format!("plx{}", device / per));
                node.join(switch, socket(device), pcie, PCI_NANOS, LinkKind::Pci);
                homes.push(switch);
            }
            let switch = homes.last().copied().unwrap_or(0);
            node.join(device, switch, pcie, PCI_NANOS, LinkKind::Pci);
        }
        homes.dedup();
        homes
    }

    fn nvlinks(&self, node: &mut Node) {
        let Some(nvlink) = &self.nvlink else { return };
        if let Some(links) = nvlink.switched {
            let switch = node.add(part::SWITCH);
            for device in 0..node.devices {
                node.join(
                    device,
                    switch,
                    f64::from(links) * nvlink.bandwidth.gb_per_s(),
                    NVLINK_NANOS / 2,
                    LinkKind::NvLink,
                );
            }
        }
        let devices = node.devices;
        for &[a, b, links] in nvlink.mesh.iter().filter(|[a, b, _]| *a.max(b) < devices) {
            node.join(a, b, f64::from(links) * nvlink.bandwidth.gb_per_s(), NVLINK_NANOS, LinkKind::NvLink);
        }
    }

    /// Every figure of the preset with its source, one line per figure.
    pub fn sources(&self) -> Vec<String> {
        let nvlink = self
            .nvlink
            .iter()
            .map(|n| format!("NVLink {} GB/s a link, one way: {}", n.bandwidth.gb_per_s(), n.source));
        let pcie = format!("PCIe {} GB/s: {}", self.pcie.bandwidth.gb_per_s(), self.pcie.source);
        let nics = format!(
            "{} NICs of {} Gb/s {}: {}",
            self.nics.count,
            self.nics.bandwidth.gbit_per_s(),
            self.nics.fabric,
            self.nics.source
        );
        let fabric = fabric::named(&self.nics.fabric)
            .into_iter()
            .map(|f| format!("{} {} ns from NIC to NIC: {}", f.name, f.nanos, f.source));
        nvlink.chain([pcie, nics]).chain(fabric).collect()
    }
}
