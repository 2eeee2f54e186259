//! The links between the GPUs of a node, from a description in words: NVLink, bridges, PCIe with or without peer-to-peer.

use super::gpu::{GpuModel, Port};
use super::notes::Notes;
use super::part;

/// Whether the description says that GPUs write into each other's memory over PCIe, or that they do not; `None` if it says neither.
pub(super) fn says_peer(text: Option<&str>) -> Option<bool> {
    let text = text?.to_lowercase().replace("peer-to-peer", "p2p").replace("peer to peer", "p2p");
    let denied = [
        "no p2p",
        "no nvlink/p2p",
        "no nvlink or p2p",
        "without p2p",
        "p2p disabled",
        "p2p off",
        "p2p: no",
        "p2p is off",
        "p2p not",
    ];
    let open = ["not stated", "p2p unknown", "details", "?"].into_iter().any(|words| text.contains(words));
    match () {
        () if !text.contains("p2p") || open => None,
        () => Some(!denied.iter().any(|words| text.contains(words))),
    }
}

/// GB/s in one direction of 16 lanes of a host's PCIe for a GPU whose own have `own`, and the share of the lanes that there are, by words
/// such as `PCIe 3.0` and `PCIe Gen4 x8`. NCCL reckons with 12 GB/s for 16 lanes of PCIe 3.0, and twice that for each later one (`topo.h`).
pub(super) fn host_pcie(text: Option<&str>, own: f64) -> (f64, f64) {
    let text = text.unwrap_or_default().to_lowercase().replace("pci express", "pcie");
    let Some((_, after)) = text.split_once("pcie") else { return (own, 1.0) };
    let start = after.trim_start();
    let named = start.strip_prefix("gen").map(str::trim_start);
    let number = named.unwrap_or(start);
    let said = named.is_some() || number.get(1..3) == Some(".0") || start.len() == after.len();
    let generation = number.chars().next().and_then(|c| c.to_digit(10)).filter(|_| said);
    let all = generation.filter(|n| (1..=6).contains(n)).map_or(own, |n| 1.5 * f64::from(1u32 << n));
    let words = after.split(|c: char| !c.is_ascii_alphanumeric());
    let mut lanes = words.filter_map(|word| word.strip_prefix('x')?.parse::<u32>().ok());
    let lanes = lanes.find(|lanes| [1, 2, 4, 8].contains(lanes)).unwrap_or(16);
    (own.min(all), f64::from(lanes) / 16.0)
}

/// GB/s of the links of a GPU to the others that take part (`devices` of `host`), where links join pairs and some take no part.
pub(super) fn among(gpu: &GpuModel, port: Port, devices: u32, host: u32, notes: &mut Notes) -> Option<f64> {
    let all = part::of_pairs(gpu, port, host, devices)?;
    notes.assumed.push(format!(
        "{all} GB/s of links join each of the first {devices} of {host} GPUs to the others of them"
    ));
    Some(all)
}

/// Whether the GPUs of a node communicate over NVLink.
pub(super) fn inside(text: Option<&str>, gpu: &GpuModel, devices: u32, notes: &mut Notes) -> bool {
    if devices == 1 {
        notes.understood.push("one GPU of each node: no link inside a node is used".into());
        return false;
    }
    let text = text.unwrap_or_default().to_lowercase();
    let says = |word: &str| text.contains(word);
    let without = says("no nvlink") || says("without nvlink");
    let links = ["nvlink", "nvswitch", "nvl72", "xgmi", "infinity fabric"].into_iter().any(says);
    let nvlink = links && !without;
    match (nvlink, says("pcie") || says("pci express") || without, gpu.nvlink) {
        (true, _, Some(port)) => {
            notes.understood.push(format!("inside a node: {} links of {} GB/s", port.links, port.gb_per_s));
            if says("all-to-all") || says("mesh") {
                notes.assumed.push("links that join pairs of GPUs are taken as one port to all".into());
            }
            true
        }
        (true, _, None) if gpu.bridge.is_some() && devices <= gpu.bridged => {
            notes.understood.push(format!("an NVLink bridge joins the {devices} GPUs"));
            true
        }
        (true, _, None) => {
            notes.assumed.push(format!("the NVLink of a {} joins pairs at most: PCIe between all", gpu.name));
            false
        }
        (false, true, _) => {
            notes.assumed.push("the GPUs of a node talk over PCIe, each at its own 16 lanes' speed".into());
            false
        }
        (_, _, port) => {
            let how = if port.is_some() { "the links that this GPU has" } else { "PCIe" };
            notes.assumed.push(format!("the GPUs of a node are joined by {how}"));
            port.is_some()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_s_pcie_is_that_of_its_words_where_it_is_slower() {
        for (text, found) in [
            ("PCIe", (48.0, 1.0)),
            ("NVLink", (48.0, 1.0)),
            ("PCIe 3.0 x16", (12.0, 1.0)),
            ("PCIe Gen4 x8 with P2P", (24.0, 0.5)),
            ("PCI Express gen 4, no NVLink", (24.0, 1.0)),
            ("PCIe4 x4", (24.0, 0.25)),
            ("PCIe x8", (48.0, 0.5)),
            ("PCIe 6.0", (48.0, 1.0)),
            ("PCIe (1 GPU per node)", (48.0, 1.0)),
            ("PCIe, 4 GPUs", (48.0, 1.0)),
            ("PCIe 4 GPUs", (48.0, 1.0)),
        ] {
            assert_eq!(host_pcie(Some(text), 48.0), found, "{text}");
        }
        assert_eq!(host_pcie(None, 24.0), (24.0, 1.0));
    }

    #[test]
    fn words_on_peer_to_peer_are_understood() {
        for (text, said) in [
            ("PCIe Gen4 with P2P enabled", Some(true)),
            ("PCIe, peer-to-peer by a patched driver", Some(true)),
            ("PCIe Gen5, no P2P", Some(false)),
            ("PCIe, P2P disabled", Some(false)),
            ("PCIe; P2P state not stated", None),
            ("PCIe assumed (no NVLink/P2P/CPU details in source)", None),
            ("PCIe 4.0, no NVLink/P2P", Some(false)),
            ("PCIe", None),
        ] {
            assert_eq!(says_peer(Some(text)), said, "{text}");
        }
    }
}
