//! NCCL's topology file as a machine: the GPU, its links and the NICs, from which NCCL decides.
//!
//! ```text
//! sm 90, 18 NVLinks to switches, 8 NICs of 400000 Mb/s  -->  8 x H100 SXM, NVSwitch, 8x400Gb/s InfiniBand
//! ```

use super::nccl_topology::{NcclTopology, nvlink_gb_per_s};
use super::read_nccl;
use crate::machines::node::{LinkKind, Node};
use crate::machines::part;
use crate::machines::presets::Preset;
use crate::machines::{Description, Machine};
use crate::{Error, Result};

/// GPUs by compute capability and number of NVLinks; a number that is not listed stands for any number.
const GPUS: [(u32, Option<u32>, &str); 17] = [
    (60, Some(0), "P100 PCIe"),
    (60, None, "P100 SXM"),
    (70, Some(0), "V100 PCIe"),
    (70, None, "V100 SXM"),
    (75, None, "T4"),
    (80, Some(0), "A100 PCIe"),
    (80, Some(8), "A800"),
    (80, None, "A100 SXM"),
    (86, Some(0), "A10"),
    (86, None, "A40"),
    (89, None, "L40S"),
    (90, Some(0), "H100 PCIe"),
    (90, Some(8), "H800"),
    (90, None, "H100 SXM"),
    (100, None, "B200"),
    (103, None, "B300"),
    (120, None, "PRO 6000 Blackwell"),
];

/// Whether NVLink switches join the GPUs of a node.
fn switched(node: &Node) -> bool {
    node.places.iter().any(|place| place == part::SWITCH)
}

impl NcclTopology {
    /// The machine of `ranks` ranks that a file `FILE.xml[,machine=NAME]` describes. What the file lacks is taken from the named
    /// machine; what neither gives is in [`Machine::assumed`].
    ///
    /// # Errors
    /// A file that cannot be read; one without the compute capability of its GPUs and without a named machine; ranks that do not fill
    /// nodes; several nodes and no NIC.
    pub fn machine(name: &str, ranks: u32) -> Result<Machine> {
        let wrong = |what: String| Err(Error::Topology(format!("{name}: {what}")));
        let (read, preset, spec) = read_nccl(name)?;
        let NcclTopology { node, mut notes, sm, gpu } = read;
        let of_first =
            node.links.iter().filter(|wire| wire.kind == LinkKind::NvLink && (wire.a == 0 || wire.b == 0));
        // All links of a card with a bridge lead to one other card.
        let bridge = sm.is_some_and(|sm| sm >= 80) && of_first.clone().count() == 1 && !switched(&node);
        let all: f64 = of_first.map(|wire| wire.gb_per_s).sum();
        let links = sm.map_or(0, |sm| (all / nvlink_gb_per_s(sm)).round() as u32);
        let kind = if bridge { 0 } else { links };
        let known =
            GPUS.iter().find(|(of, count, _)| Some(*of) == sm && count.is_none_or(|count| count == kind));
        let gpu = match (gpu.or(preset.as_ref().map(|preset| preset.gpu.clone())), known) {
            (Some(gpu), _) => gpu,
            (None, Some((sm, _, gpu))) => {
                notes.push(format!("compute capability {sm} with {links} NVLinks is taken as {gpu}"));
                (*gpu).to_string()
            }
            (None, None) => {
                let has = sm.map_or("lists no compute capability (`sm`) of its GPUs".into(), |sm| {
                    format!("lists compute capability {sm}, which is that of no known GPU")
                });
                return wrong(format!(
                    "{has}, by which NCCL chooses; name the machine that the file is of, as in {name},machine=hgx-h100"
                ));
            }
        };
        let devices = spec.devices.unwrap_or(node.devices).min(node.devices).min(ranks.max(1));
        if !ranks.is_multiple_of(devices) {
            return wrong(format!(
                "{ranks} ranks are not a whole number of nodes of {devices} GPUs; take a multiple of {devices}"
            ));
        }
        let fastest = node.nics.iter().map(|nic| nic.gbit_per_s).fold(0.0, f64::max);
        let theirs = node.nics_of(devices);
        let count = theirs.iter().filter(|nic| nic.gbit_per_s >= fastest).count();
        if count == 0 && ranks > devices {
            return wrong(format!(
                "lists no NIC, and {ranks} ranks are on several nodes; name the machine, as in {name},machine=hgx-h100"
            ));
        }
        let fabric = preset.as_ref().map_or("InfiniBand", |preset: &Preset| &preset.nics.fabric);
        if preset.is_none() && ranks > devices {
            notes.push("the fabric of the NICs is not in the file: InfiniBand".into());
        }
        // GB/s of each GPU to the others that take part.
        let among = part::among(&node, devices);
        let inside = match (among > 0.0, switched(&node)) {
            (true, true) => "NVLink NVSwitch",
            (true, false) => "NVLink all-to-all",
            (false, _) => "PCIe",
        };
        let words = Description {
            gpu: Some(gpu),
            gpus_per_node: Some(devices),
            nodes: Some(ranks / devices),
            intra_node: Some(inside.into()),
            inter_node: Some(format!("{count}x{fastest}Gb/s {fabric}")),
            host_gpus: Some(devices.max(if switched(&node) { node.devices } else { 0 })),
        };
        let mut machine = Machine::understand(&words)?;
        machine.nvlink = among > 0.0;
        machine.nvlink_gb_per_s = Some(among).filter(|_| machine.nvlink && !machine.switched);
        machine.assumed.splice(0..0, notes);
        Ok(machine)
    }
}
