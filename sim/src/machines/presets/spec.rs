//! The text that selects a machine and its options on the command line.
//!
//! ```text
//! dgx-a100                              as many nodes as the ranks need
//! dgx-a100:16                           at most 16 nodes
//! hgx-h100:64,fat-tree=2:1,pod=32       32 nodes per pod; a pod's uplinks carry half of what its NICs can send
//! p4d,fabric=tcp   l40s,nics=4,nic-bandwidth=400Gb/s   other NICs than the machine's own
//! hgx-h100,nvlink-bandwidth=450GB/s     another NVLink: all links of a device together, one way
//! ```

use crate::machines::node::Fabrics;
use crate::quantity::Bandwidth;
use crate::{Error, Result, suggest};
use std::collections::BTreeSet;

/// The parts of the text that a user wrote after `--topology`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    pub name: String,
    pub nodes: Option<u32>,
    pub devices: Option<u32>,
    pub nics: Option<u32>,
    pub nic_bandwidth: Option<Bandwidth>,
    /// The bandwidth of all NVLinks of a device.
    pub nvlink_bandwidth: Option<Bandwidth>,
    pub fabric: Option<String>,
    /// The preset that completes an NCCL file.
    pub machine: Option<String>,
    pub fabrics: Fabrics,
}

/// Every option of a machine, with its help text.
pub const OPTIONS: [(&str, &str); 8] = [
    ("fabric=NAME", "InfiniBand, RoCE, Slingshot, EFA, TCPX, TCPXO or TCP"),
    ("nics=N", "NICs of a node"),
    ("nic-bandwidth=B", "a NIC, one way, with its unit: 400Gb/s or 50GB/s"),
    ("nvlink-bandwidth=B", "all NVLinks of a GPU together, one way, with its unit: 450GB/s"),
    ("devices=N", "use the first N devices of each node only"),
    ("fat-tree=O:1", "what leaves a pod is 1/O of what its NICs can send; 1:1 is a full fat tree"),
    ("pod=N", "nodes below one set of leaf switches (default 32)"),
    ("rails=on|off", "on: each NIC of a node has a leaf switch of its own (default on)"),
];

impl Spec {
    pub(crate) fn read(text: &str) -> Result<Spec> {
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or_default();
        let (name, nodes) = match head.split_once(':') {
            Some((name, nodes)) => (name, Some(number(nodes, "nodes", 1, 1 << 24)?)),
            None => (head, None),
        };
        let mut spec = Spec {
            name: name.to_ascii_lowercase().replace('_', "-"),
            nodes,
            devices: None,
            nics: None,
            nic_bandwidth: None,
            nvlink_bandwidth: None,
            fabric: None,
            machine: None,
            fabrics: Fabrics::FLAT,
        };
        let mut given = BTreeSet::new();
        for part in parts {
            let name = part.split('=').next().unwrap_or(part);
            if !given.insert(name) {
                return Err(Error::Topology(format!("`{text}` gives {name} twice; give it once")));
            }
            spec.option(part)?;
        }
        Ok(spec)
    }

    /// Refuses a number of NICs that a node's devices cannot share evenly.
    pub(super) fn check_nics(&self, devices: u32) -> Result<()> {
        match self.nics.filter(|nics| !devices.is_multiple_of(*nics) && !nics.is_multiple_of(devices.max(1)))
        {
            Some(nics) => Err(Error::Topology(format!(
                "{devices} devices cannot share {nics} NICs evenly; give a number of NICs that divides the devices, or a multiple of them"
            ))),
            None => Ok(()),
        }
    }

    /// Notes on options of switches that have no effect on the bandwidth between this many nodes of `text`.
    pub(super) fn switch_notes(&self, text: &str, nodes: u32) -> Vec<String> {
        let Fabrics { oversubscription, pod, rails } = self.fabrics;
        let Some(ratio) = oversubscription else {
            let options = [("pod", pod != Fabrics::FLAT.pod), ("rails", !rails)];
            let given = options.into_iter().find(|(_, given)| *given);
            let note = |(option, _)| {
                format!(
                    "{option} of `{text}` has no effect without fat-tree; add fat-tree=1:1 or leave {option} out"
                )
            };
            return given.map(note).into_iter().collect();
        };
        if nodes <= 1 || nodes > pod || (nodes == pod && rails) {
            return Vec::new();
        }
        let why = match rails {
            false => format!("all {nodes} nodes are in one pod of {pod}, and no message crosses its uplinks"),
            true if f64::from(nodes) * ratio <= f64::from(pod) => format!(
                "all {nodes} nodes are in one pod, whose uplinks, those of {pod} nodes, carry all that the nodes can send, so that the fat \
                 tree limits nothing"
            ),
            true => format!("a pod's uplinks are those of {pod} nodes, and there are {nodes}"),
        };
        let give = if rails {
            format!("give pod={nodes} for a switch of these nodes, or fewer for several pods")
        } else {
            format!("give a pod of fewer nodes, such as pod={}", nodes.div_ceil(2))
        };
        vec![format!("fat-tree={ratio}:1 of `{text}`: {why}; {give}")]
    }

    fn option(&mut self, part: &str) -> Result<()> {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key {
            "machine" => self.machine = Some(value.into()),
            "fabric" => self.fabric = Some(value.into()),
            "nics" => self.nics = Some(number(value, key, 1, 1024)?),
            "devices" => self.devices = Some(number(value, key, 1, 1024)?),
            "pod" => self.fabrics.pod = number(value, key, 1, 1 << 20)?,
            "nic-bandwidth" | "nvlink-bandwidth" => {
                let read: Bandwidth =
                    value.parse().map_err(|what| Error::Topology(format!("{key}={value}: {what}")))?;
                let of =
                    if key == "nic-bandwidth" { &mut self.nic_bandwidth } else { &mut self.nvlink_bandwidth };
                *of = Some(read);
            }
            "fat-tree" => {
                let ratio = value.strip_suffix(":1").unwrap_or(value).parse().ok();
                let ratio = ratio.filter(|ratio| (0.01..=1000.0).contains(ratio));
                let wrong = || {
                    Error::Topology(format!(
                        "fat-tree={value} is not an oversubscription of 0.01:1 to 1000:1; write fat-tree=1:1, fat-tree=2:1, .."
                    ))
                };
                self.fabrics.oversubscription = Some(ratio.ok_or_else(wrong)?);
            }
            "rails" => match value {
                "on" => self.fabrics.rails = true,
                "off" => self.fabrics.rails = false,
                _ => {
                    return Err(Error::Topology(format!(
                        "rails={value} is not a choice; write rails=on or rails=off"
                    )));
                }
            },
            _ => {
                let keys: Vec<&str> = OPTIONS
                    .iter()
                    .filter_map(|(option, _)| option.split_once('=').map(|(key, _)| key))
                    .collect();
                return Err(Error::Topology(suggest::unknown("option of a machine", key, &keys)));
            }
        }
        Ok(())
    }
}

fn number(text: &str, what: &str, least: u32, most: u32) -> Result<u32> {
    text.parse().ok().filter(|n| (least..=most).contains(n)).ok_or_else(|| {
        Error::Topology(format!("`{text}` is not a number of {what}; write {least} to {most}"))
    })
}
