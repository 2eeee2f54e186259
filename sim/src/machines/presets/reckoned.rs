//! A machine preset for the model of NCCL: GPUs, groups that share NVLink, and NICs, without the graph of a node.

use super::{Preset, Spec};
use crate::machines::node::Fabrics;
use crate::machines::part;
use crate::machines::{Cpu, Fabric, Generation, GpuModel, Machine, Nics};
use crate::quantity::Bandwidth;
use crate::{Error, Result};

impl Preset {
    /// Refuses a text with switches above the nodes, which the model of NCCL does not have.
    ///
    /// # Errors
    /// An option of switches; a text that cannot be read.
    pub fn check_flat(text: &str) -> Result<()> {
        match Spec::read(text)?.fabrics == Fabrics::FLAT {
            true => Ok(()),
            false => Err(Error::Topology(format!(
                "`{text}`: the model of NCCL has nodes and NICs, but no switches above them: leave out fat-tree, pod and rails"
            ))),
        }
    }

    /// The machine for a text such as `hgx-h100:128` or `p4d,nics=4`, with `ranks` GPUs.
    ///
    /// # Errors
    /// An unknown machine; nodes with different numbers of GPUs; more ranks than the GPUs of the nodes that the text
    /// names; switches above the nodes, which the model of NCCL does not have.
    pub fn machine(text: &str, ranks: u32) -> Result<Machine> {
        let wrong = |what: String| Err(Error::Topology(format!("`{text}`: {what}")));
        let spec = Spec::read(text)?;
        let preset = Preset::named(&spec.name)?.linked(&spec)?;
        Preset::check_flat(text)?;
        let Some(gpu) = GpuModel::all().iter().find(|gpu| gpu.name == preset.gpu) else {
            return wrong(format!("no GPU is called {}", preset.gpu));
        };
        let most = spec.devices.unwrap_or(preset.devices).clamp(1, preset.devices);
        spec.check_nics(most)?;
        let devices = most.min(ranks.max(1));
        if !ranks.is_multiple_of(devices) {
            return wrong(format!(
                "{ranks} ranks are not a whole number of nodes of {devices}; take a multiple of {devices}, or devices=N, which uses the first N of each node"
            ));
        }
        let nodes = ranks / devices;
        if let Some(has) = spec.nodes.filter(|has| nodes > *has) {
            return wrong(format!("{ranks} ranks are more than the {} GPUs of {has} nodes", has * devices));
        }
        let links = preset.nvlink.as_ref().map_or(0, |nvlink| nvlink.among(devices));
        let nvlink = links > 0 && devices > 1;
        let of_pairs = preset.nvlink.as_ref().filter(|nvlink| nvlink.switched.is_none());
        let of_pairs = of_pairs.map(|nvlink| f64::from(links) * nvlink.bandwidth.gb_per_s());
        let nics = Nics {
            count: part::nics(spec.nics.unwrap_or(preset.nics.count), preset.devices, most),
            gbit_per_s: spec.nic_bandwidth.unwrap_or(preset.nics.bandwidth).gbit_per_s(),
            ..carried(spec.fabric.as_deref().unwrap_or(&preset.nics.fabric), gpu.generation)
        };
        if nodes > 1 && nics.count == 0 {
            return wrong(format!("{nodes} nodes, but the machine has no NIC"));
        }
        let arm = gpu.name.starts_with('G');
        let cpu = match () {
            () if arm => Cpu::Arm,
            () if preset.pcie.source.contains("AMD") => Cpu::Amd,
            () => Cpu::Intel,
        };
        Ok(Machine {
            gpu,
            devices,
            nodes,
            nvlink,
            nvlink_gb_per_s: of_pairs.filter(|_| nvlink).or(spec.nvlink_bandwidth.map(Bandwidth::gb_per_s)),
            peer: nvlink || preset.pcie.p2p,
            sharing_uplink: preset.pcie.devices_per_switch.min(devices).max(1),
            switched: nvlink && preset.nvlink.is_some_and(|nvlink| nvlink.switched.is_some()),
            nics_behind_gpu_switch: preset.pcie.devices_per_switch > 0 && !arm,
            cpu,
            nics: (nodes > 1).then_some(nics),
            understood: vec![format!("{}: {}", preset.name, preset.title)],
            assumed: Vec::new(),
        })
    }
}

/// NICs of the fabric called `name`; the caller sets their number and speed.
fn carried(name: &str, generation: Generation) -> Nics {
    let known = match name.to_ascii_lowercase().as_str() {
        "tcp" => Fabric::Sockets.name(),
        "ib" => Fabric::InfiniBand.name(),
        _ => name,
    };
    let is = |fabric: &Fabric| fabric.name().eq_ignore_ascii_case(known);
    let fabric = Fabric::ALL.into_iter().find(is).unwrap_or(Fabric::Unknown);
    let early = fabric == Fabric::Efa && generation < Generation::Ampere;
    Nics { count: 1, gbit_per_s: 0.0, fabric, gpudirect: fabric != Fabric::Sockets && !early }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_by_name_is_the_one_that_its_words_describe() {
        let named = Preset::machine("hgx-h100:16", 128).unwrap();
        assert_eq!(
            (named.devices, named.nodes, named.switched, named.nics_behind_gpu_switch),
            (8, 16, true, true)
        );
        assert_eq!(named.nics.unwrap().fabric, Fabric::InfiniBand);
        let rack = Preset::machine("gb200-nvl72", 144).unwrap();
        assert_eq!((rack.devices, rack.nodes, rack.cpu), (72, 2, Cpu::Arm));
        let part = Preset::machine("dgx-a100", 4).unwrap();
        assert_eq!((part.devices, part.nodes, part.nics), (4, 1, None));
        let old = Preset::machine("p3dn", 16).unwrap();
        assert_eq!((old.nics.unwrap().fabric, old.nics.unwrap().gpudirect), (Fabric::Efa, false));
    }

    #[test]
    fn the_speed_of_nvlink_is_the_gpu_s_own_or_the_user_s() {
        let port = |text: &str| Preset::machine(text, 8).unwrap().port().bandwidth().0 as f64 / 1e9;
        for (machine, own) in [("hgx-h100", 18.0 * 20.6), ("dgx1-v100", 6.0 * 20.0)] {
            assert!((port(machine) - own).abs() < 1e-6, "{machine}");
            assert!((port(&format!("{machine},nvlink-bandwidth=100GB/s")) - 100.0).abs() < 1e-6, "{machine}");
        }
    }

    #[test]
    fn what_the_model_does_not_have_is_refused() {
        for (text, ranks, says) in [
            ("hgx-h100:2", 24, "more than the 16 GPUs"),
            ("hgx-h100", 12, "not a whole number of nodes of 8"),
            ("hgx-h100,fat-tree=2:1", 16, "no switches above"),
            ("hgx-h1000", 16, "hgx-h100"),
            ("hgx-h100,devices=4,nics=3", 16, "4 devices cannot share 3 NICs evenly"),
        ] {
            let said = Preset::machine(text, ranks).unwrap_err().to_string();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
