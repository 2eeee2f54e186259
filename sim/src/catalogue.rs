//! Topologies by name: built-in shapes, machines, and files.
//!
//! ```text
//! switch, nodes8x4      the shapes of `topology`, with links of an A100 node
//! hgx-h100:64           a machine of `machines`
//! dump.xml, net.yml     a file of another tool, read by `files`
//! ./own.toml            a file of our own, read by `topology`
//! ```

use crate::machines::GpuRates;
use crate::machines::presets::Preset;
use crate::{BytesPerSec, Error, Link, Picos, Result, Topology, files, suggest};
use std::path::Path;

/// A GPU's port to its node's switch: one direction of NVLink 3, 12 links of 25 GB/s (NVIDIA A100 datasheet:
/// 600 GB/s both ways); latency is the hardware term NCCL's tuner uses for NVLink with its LL protocol.
pub const DEVICE_LINK: Link = Link { bandwidth: BytesPerSec(300_000_000_000), latency: Picos(600_000) };
/// A NIC: 200 Gb/s HDR InfiniBand (25 GB/s each way); the latency is that of NCCL's tuner for a network hop with LL.
pub const NIC_LINK: Link = Link { bandwidth: BytesPerSec(25_000_000_000), latency: Picos(2_700_000) };

/// The names of built-in topologies for help texts and suggestions; [`Topology::named`] accepts more.
pub const NAMES: [&str; 6] = ["switch", "ring", "mesh", "nodes8", "nodes8x4", "nodes8x1"];

impl Topology {
    /// A topology by name: one of [`NAMES`]; `nodesK` or `nodesKxM` for any K devices and M NICs per node; a machine such as
    /// `dgx-a100` or `hgx-h100:64,fat-tree=2:1` ([`crate::machines::presets`]); a file of another tool ([`crate::files`]); or the
    /// path of a TOML file (the name ends in `.toml` or has a `/` in it).
    pub fn named(name: &str, ranks: u32) -> Result<Topology> {
        if let Some(topology) = files::topology(name, ranks)? {
            return Ok(topology);
        }
        let head = name.split([':', ',']).next().unwrap_or_default();
        if name.to_ascii_lowercase().ends_with(".json") && Path::new(name).is_file() {
            return Err(Error::File {
                path: name.into(),
                what: "a JSON file describes a machine for `allfold simulate --algo nccl` alone; a topology file ends in .toml".into(),
            });
        }
        // A machine's options may contain a `/`, as in nic-bandwidth=400Gb/s, so only the text before them decides.
        if name.ends_with(".toml") || head.contains('/') {
            return Topology::load(Path::new(name), ranks);
        }
        match name {
            "switch" => return Topology::switch(ranks, DEVICE_LINK),
            "ring" => return Topology::ring(ranks, DEVICE_LINK),
            "mesh" => return Topology::mesh(ranks, DEVICE_LINK),
            _ => {}
        }
        if let Some(machine) = Preset::topology_of(name, ranks)? {
            return Ok(machine);
        }
        let nodes = name.strip_prefix("nodes").and_then(|sizes| {
            let (devices, nics) = sizes.split_once('x').unwrap_or((sizes, sizes));
            Some((devices.parse().ok()?, nics.parse().ok()?))
        });
        match nodes {
            Some((devices, nics)) => Topology::nodes(ranks, devices, nics, DEVICE_LINK, NIC_LINK),
            // A name with a dot, or the name of an existing file, was meant as a file.
            None if head.contains('.') || Path::new(name).is_file() => Err(Error::File {
                path: name.into(),
                what: "a topology file ends in .toml, an NCCL topology in .xml, one of ASTRA-sim in .yml"
                    .into(),
            }),
            None if head != name && (NAMES.contains(&head) || head.starts_with("nodes")) => {
                Err(Error::Topology(format!(
                    "`{head}` takes no options; machines do, such as dgx-a100:4,fat-tree=2:1"
                )))
            }
            None => {
                let what = suggest::unknown("topology", head, &[&NAMES[..], &Preset::names()].concat());
                Err(Error::Topology(format!(
                    "{what}; `allfold machines` describes them; or name a file that ends in .toml, .xml or .yml"
                )))
            }
        }
    }
}

/// The GPU of a topology by name: of a machine, or of a file that names or describes one; `None` for any other topology, also for one
/// that cannot be read, which [`Topology::named`] refuses.
pub fn gpu_of(name: &str) -> Option<&'static GpuRates> {
    match name.ends_with(".toml") {
        true => Topology::gpu_of(Path::new(name)).ok()?,
        false => GpuRates::find(&Preset::with_options(name).ok()?.gpu),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_kind_is_refused_as_a_file() {
        for name in ["empty.txt", "cluster.json"] {
            let said = Topology::named(name, 4).unwrap_err().to_string();
            assert!(said.starts_with(name) && said.contains("ends in .toml"), "{said}");
        }
        let said = Topology::named("swich", 4).unwrap_err().to_string();
        assert!(said.contains("did you mean `switch`"), "{said}");
    }

    #[test]
    fn too_many_ranks_for_a_switch_are_not_told_to_use_a_switch() {
        let said = Topology::named("switch", u32::MAX).unwrap_err().to_string();
        assert!(said.ends_with("use fewer ranks"), "{said}");
    }
}
