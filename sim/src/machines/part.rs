//! What belongs to the GPUs of a node that take part, where others do not: links to each other, and NICs.
//!
//! ```text
//! DGX-1, GPUs 0 and 1 of 8       1 of 6 NVLinks joins them: 20 GB/s, not 120
//! MI300X, 2 of 8                 1 of 7 xGMI links: 64 GB/s
//! 4 A100 PCIe, bridged in pairs  pairs have NVLink; three or four talk over PCIe
//! HGX H100, 2 of 8, 8 NICs       the 2 NICs behind their PCIe switches
//! ```

use super::gpu::{Generation, GpuModel, Port};
use super::node::{LinkKind, Node};

/// PCIe carries this much more than NCCL reckons for its links (`topo.h`): 26 GB/s of payload for 24 over 16 lanes of PCIe 4.0, as
/// NICs of 200 Gb/s reach their 25 GB/s.
const PCIE_PAYLOAD: f64 = 1.1;

/// The least number of links among the first two to seven GPUs of a DGX-1 with V100, by its table of pairs (`presets/dgx1-v100.toml`).
pub(crate) const CUBE_MESH: [u32; 6] = [1, 2, 4, 2, 3, 4];

/// The number of NICs that serve the first `devices` of a node's `host` GPUs, over which `count` NICs are spread evenly.
pub(super) fn nics(count: u32, host: u32, devices: u32) -> u32 {
    if devices >= host {
        return count;
    }
    let theirs = (u64::from(count) * u64::from(devices)).div_ceil(u64::from(host));
    u32::try_from(theirs).unwrap_or(count)
}

/// GB/s in one direction that `devices` GPUs can send through their own PCIe links.
pub(super) fn through_pcie(gpu: &GpuModel, devices: u32) -> f64 {
    f64::from(devices) * f64::from(gpu.pcie.links) * gpu.pcie.gb_per_s * PCIE_PAYLOAD
}

/// GB/s in one direction of the NVLinks of a GPU to those of the first `devices` of a node's `host` GPUs, where links join pairs of
/// GPUs; `None` if all links count.
pub(super) fn of_pairs(gpu: &GpuModel, port: Port, host: u32, devices: u32) -> Option<f64> {
    if devices < 2 || devices >= host {
        return None;
    }
    let links = match gpu.generation {
        // Hosts of eight have the hybrid cube mesh of the DGX-1.
        Generation::Volta if host == 8 => {
            let least = CUBE_MESH.get(devices as usize - 2).copied().unwrap_or(port.links);
            least.min(port.links)
        }
        // Every GPU has equally many links to every other GPU.
        _ => port.links * (devices - 1) / (host - 1),
    };
    (links > 0).then(|| f64::from(links) * port.gb_per_s)
}

/// The least number of links of any of the first `devices` GPUs to the others of them, from the pairs that links join; 0 if the links
/// do not join all of them. A ring takes one link out of every GPU, so as many rings fit.
pub(super) fn least_links(pairs: &[[u32; 3]], devices: u32) -> u32 {
    let inside = || pairs.iter().filter(move |[a, b, _]| *a.max(b) < devices);
    let mut reached = vec![0u32];
    let mut next = 0;
    while let Some(&at) = reached.get(next) {
        next += 1;
        for &[a, b, _] in inside() {
            let other = if a == at { b } else { a };
            if (a == at || b == at) && !reached.contains(&other) {
                reached.push(other);
            }
        }
    }
    if reached.len() < devices as usize {
        return 0;
    }
    let of = |gpu: u32| inside().filter(|[a, b, _]| *a == gpu || *b == gpu).map(|[_, _, links]| links).sum();
    (0..devices).map(of).min().unwrap_or(0)
}

/// The name of the place of a node's NVLink switches.
pub(crate) const SWITCH: &str = "nvswitch";

/// GB/s in one direction of the NVLinks of each of the first `devices` GPUs of a node, at least, to the others of them; 0 if NVLinks do
/// not join them all.
pub(crate) fn among(node: &Node, devices: u32) -> f64 {
    let nvlinks = || node.links.iter().filter(|wire| wire.kind == LinkKind::NvLink);
    if devices < 2 {
        return 0.0;
    }
    if nvlinks().any(|wire| wire.a.max(wire.b) >= node.devices) {
        return (0..devices).map(|device| node.nvlink_gb_per_s(device)).fold(f64::INFINITY, f64::min);
    }
    // In tenths of GB/s: whole numbers, as links are counted.
    let pairs: Vec<[u32; 3]> =
        nvlinks().map(|wire| [wire.a, wire.b, (10.0 * wire.gb_per_s).round() as u32]).collect();
    f64::from(least_links(&pairs, devices)) / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::{Description, Machine};

    fn machine(gpu: &str, of: (u32, u32), nodes: u32, inside: &str, across: &str) -> Machine {
        let words = Description {
            gpu: Some(gpu.into()),
            gpus_per_node: Some(of.0),
            host_gpus: Some(of.1),
            nodes: Some(nodes),
            intra_node: Some(inside.into()),
            inter_node: Some(across.into()),
        };
        Machine::understand(&words).unwrap()
    }

    fn port(machine: &Machine) -> f64 {
        (machine.port().bandwidth().0 as f64 / 1e8).round() / 10.0
    }

    #[test]
    fn gpus_send_no_more_than_their_own_nics_and_pcie() {
        let network =
            |gpu, of, inside, across| machine(gpu, of, 2, inside, across).network().unwrap().0 as f64 / 1e9;
        for (gpu, of, across, gb_per_s) in [
            ("H100 80GB HBM3", (1, 8), "4x400Gb/s RoCE", 50.0),
            ("H100 80GB HBM3", (2, 8), "8x400Gb/s RoCE", 100.0),
            ("H100 80GB HBM3", (4, 8), "8x400Gb/s RoCE", 200.0),
            ("H100 80GB HBM3", (8, 8), "8x400Gb/s RoCE", 400.0),
            ("H100 80GB HBM3", (1, 1), "4x400Gb/s RoCE", 52.8),
            ("A100-SXM4", (2, 8), "4x200Gb/s IB", 25.0),
            ("A100-SXM4", (1, 8), "1x200Gb/s IB", 25.0),
            // A description that counts NICs per GPU counts those of the GPUs that take part.
            ("H100 80GB HBM3", (2, 8), "one 400 Gb/s NIC per GPU", 100.0),
            // Grace reaches NICs over its own link to the GPU, which is faster than PCIe.
            ("GH200", (4, 4), "4x800Gb/s IB", 400.0),
        ] {
            assert!((network(gpu, of, "NVLink", across) - gb_per_s).abs() < 1e-6, "{gpu}, {of:?}, {across}");
        }
    }

    #[test]
    fn links_between_pairs_count_where_both_gpus_take_part() {
        for (gpu, of, inside, nvlink, gb_per_s) in [
            ("V100-SXM2", (2, 8), "NVLink2 hybrid cube mesh", true, 20.0),
            ("V100-SXM2", (3, 8), "NVLink2 hybrid cube mesh", true, 40.0),
            ("V100-SXM2", (4, 8), "NVLink2 hybrid cube mesh", true, 80.0),
            ("V100-SXM2", (8, 8), "NVLink2 hybrid cube mesh", true, 120.0),
            ("A100-SXM4", (2, 4), "NVLink3 direct all-to-all", true, 80.0),
            ("A100-SXM4", (2, 8), "NVLink3 NVSwitch", true, 240.0),
            ("MI300X", (2, 8), "xGMI", true, 64.0),
            ("A100 PCIe", (2, 2), "NVLink bridge (NV12)", true, 240.0),
            ("A100 PCIe", (3, 8), "NVLink bridges between pairs, PCIe Gen4 otherwise", false, 24.0),
            ("A100 PCIe", (2, 2), "PCIe", false, 24.0),
            ("RTX 3090", (2, 2), "NVLink bridge", true, 48.0),
            ("H200 NVL", (4, 8), "4-way NVLink bridge", true, 370.8),
        ] {
            let found = machine(gpu, of, 1, inside, "");
            assert_eq!((found.nvlink, port(&found)), (nvlink, gb_per_s), "{gpu}, {of:?}, {inside}");
        }
    }

    #[test]
    fn pairs_that_are_apart_are_not_joined() {
        let pairs = [[0, 1, 12], [2, 3, 12]];
        assert_eq!([2, 3, 4].map(|devices| least_links(&pairs, devices)), [12, 0, 0]);
    }
}
