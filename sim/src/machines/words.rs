//! The words of a description that no reader of NICs and links understands.
//!
//! Published descriptions are free text with remarks, and are read for what they contain. A description that somebody writes for an own
//! machine is checked here too, so that a typing error or a second kind of NICs is not ignored:
//!
//! ```text
//! 2x200Gb/s Infiniband bananas             `bananas` is named
//! 1x200Gb/s + 1x100Gb/s InfiniBand         refused: NICs of a node have one speed
//! bananas                                  refused: nothing is understood
//! 4x Slingshot-11 200 Gb/s (per GH200)     the text in brackets is a remark
//! ```

use super::amounts;
use super::description::{Description, Machine};
use super::nic::{self, Fabric};
use crate::{Error, Result};

/// Words that occur in descriptions without an effect.
const PLAIN: &str = "a all among an and at aws azure between both broadcom by class coreweave cpu domain each every for \
    gcp gen google gpu host hpe hsn ib in is link lane mellanox network nic node nvidia oci of ofi on one \
    over pair path per plus rack rate server single speed switch the to use via with";

/// Words about the network between nodes.
const NETWORK: &str = "adapter ainic bluefield card connectx cx cxi direct dual edr efa eight ena ethernet fabric fdr four \
    gbe gdr gib gige gpudirect gvnic hca hdr infiniband ipoib ndr pollara port quad quantum rail rdma \
    roce sharp sixteen slingshot socket spectrum-x tcp tcpx tcpxo two xdr";

/// Words about the links inside a node.
const INSIDE: &str = "all-to-all amd bridge cube dgx direct disabled driver enabled epyc express fabric hgx hybrid infinity intel mesh mnnvl \
    multi-node no nv nvl nvlink nvswitch off otherwise p2p patched peer-to-peer pci pcie via without xgmi";

/// Units, and the sign between a number and a speed.
const UNITS: &str = "bit/s g gb gb/s gbe gbit gbit/s gbits/s gbps gige mb/s tb/s tbps th x -way";

impl Description {
    /// A line for each text in which words are not understood, with what was understood of it. `machine` is what
    /// [`Machine::understand`] read.
    ///
    /// # Errors
    /// A text of which nothing is understood; NICs of more than one speed.
    pub fn not_understood(&self, machine: &Machine) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        if let Some(text) = self.intra_node.as_deref().filter(|_| self.gpus_per_node != Some(1)) {
            let words = unknown(text, INSIDE);
            let links = ["nvl", "nvswitch", "xgmi", "infinity fabric", "pcie", "pci express"];
            let lower = text.to_lowercase();
            if !words.is_empty() && !links.iter().any(|word| lower.contains(word)) {
                return Err(Error::Topology(format!(
                    "`intra_node` is \"{text}\", of which nothing is understood; write \"NVLink\" or \"PCIe\", or leave `intra_node` out"
                )));
            }
            let by = if machine.nvlink { "NVLink" } else { "PCIe" };
            lines.extend(named("intra_node", text, &words, by));
        }
        let (Some(text), Some(nics)) = (self.inter_node.as_deref(), machine.nics) else { return Ok(lines) };
        let words = unknown(text, NETWORK);
        let speeds = amounts::speeds(&without_remarks(text));
        let fabric = if nics.fabric == Fabric::Unknown { "InfiniBand" } else { nics.fabric.name() };
        if speeds.len() > 1 {
            return Err(Error::Topology(format!(
                "`inter_node` is \"{text}\", which gives {} speeds, and all NICs of a node have one speed here; write the number and the \
                 speed of the NICs that NCCL is to use once, such as \"{}x{}Gb/s {fabric}\"",
                speeds.len(),
                amounts::count(text).unwrap_or(1),
                speeds[0]
            )));
        }
        let nothing = speeds.is_empty() && amounts::count(text).is_none() && !nic::says_kind(text);
        if nothing && !words.is_empty() {
            return Err(Error::Topology(format!(
                "`inter_node` is \"{text}\", of which nothing is understood; write number, speed and fabric of a node's NICs, such as \
                 \"8x400Gb/s InfiniBand\""
            )));
        }
        lines.extend(named("inter_node", text, &words, &nics.to_string()));
        Ok(lines)
    }
}

fn named(key: &str, text: &str, words: &[String], understood: &str) -> Option<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    let quoted = quoted.join(", ");
    (!words.is_empty())
        .then(|| format!("{quoted} in `{key}`, \"{text}\", has no effect; understood: {understood}"))
}

/// The text without what is in brackets.
fn without_remarks(text: &str) -> String {
    let mut depth = 0_u32;
    let mut kept = String::new();
    for c in text.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            c if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    kept
}

/// The words of a text that are neither numbers with a unit, nor plain words, nor among `known`.
fn unknown(text: &str, known: &str) -> Vec<String> {
    let has =
        |word: &str| [known, PLAIN, UNITS].iter().any(|words| words.split(' ').any(|known| known == word));
    let is_one = |word: &str| {
        let lower = word.to_lowercase().replace('×', "x");
        // `2x200Gb/s`, `8xHDR`: what follows the numbers.
        let after = lower.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let after = if after.len() < lower.len() { after.strip_prefix('x').unwrap_or(after) } else { after };
        let after = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        // `RoCEv2`, `ConnectX-7`, `NICs`: the name without its version, or in the singular.
        let name = after.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').trim_end_matches('-');
        let all = [
            after,
            name,
            name.trim_end_matches('v'),
            name.trim_end_matches('s'),
            name.trim_end_matches("-class"),
        ];
        let number = after.is_empty() && !lower.is_empty();
        number || all.iter().any(|name| has(name)) || nic::is_instance(&lower)
    };
    // `GPUDirect-TCPXO` is two words; `all-to-all` is one.
    let is_known = |word: &str| is_one(word) || word.split('-').all(is_one);
    let kept = without_remarks(text);
    let words = kept.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | ':' | '+' | '&' | '|'));
    let words = words.map(|word| word.trim_matches(['.', '-', '"', '/']));
    words.filter(|word| !word.is_empty() && !is_known(word)).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(inside: &str, across: &str) -> Result<Vec<String>> {
        let text = |text: &str| Some(text.to_string());
        let words = Description {
            gpu: text("A100 SXM"),
            gpus_per_node: Some(4),
            nodes: Some(2),
            intra_node: text(inside),
            inter_node: text(across),
            host_gpus: None,
        };
        words.not_understood(&Machine::understand(&words)?)
    }

    #[test]
    fn words_that_are_not_understood_are_named_with_what_is() {
        let lines = checked("NVLink bananas", "2x200Gb/s Infiniband bananas").unwrap();
        assert_eq!(
            lines,
            [
                "`bananas` in `intra_node`, \"NVLink bananas\", has no effect; understood: NVLink",
                "`bananas` in `inter_node`, \"2x200Gb/s Infiniband bananas\", has no effect; understood: 2 NICs of 200 Gb/s, InfiniBand"
            ]
        );
        for across in [
            "8x400Gb/s IB NDR with SHARP (CoreWeave)",
            "2x HPE Slingshot-11 (200 Gb/s) per node via cxi",
            "one 400 Gb/s-class NIC per GPU (plateau 48.9 GB/s)",
            "8x200Gb/s gVNIC GPUDirect-TCPXO (GCP a3-megagpu-8g)",
            "8 ConnectX-7 NICs, 400G each",
            "dual 100GbE RoCEv2",
            "8xHDR InfiniBand",
            "p5en.48xlarge, EFAv3",
            "4 × 50 GB/s RoCE",
        ] {
            let lines = checked("NVLink3 NVSwitch", across).unwrap();
            assert_eq!(lines, Vec::<String>::new(), "{across}");
        }
        for inside in [
            "",
            "PCIe Gen5, no NVLink",
            "NVLink2 hybrid cube mesh (6 links/GPU)",
            "NVL72 domain",
            "xGMI all-to-all",
        ] {
            assert_eq!(checked(inside, "EFA").unwrap(), Vec::<String>::new(), "{inside}");
        }
    }

    #[test]
    fn two_speeds_of_nics_and_a_text_without_any_sense_are_refused() {
        for (inside, across, says) in [
            ("NVLink", "1x200Gb/s + 1x100Gb/s InfiniBand", "gives 2 speeds"),
            ("NVLink", "200Gb/s,100Gb/s InfiniBand", "once, such as \"1x200Gb/s InfiniBand\""),
            ("NVLink", "25 GB/s and 12.5 GB/s RoCE", "such as \"1x200Gb/s RoCE\""),
            ("NVLink", "bananas", "such as \"8x400Gb/s InfiniBand\""),
            ("bananas", "2x200Gb/s InfiniBand", "write \"NVLink\" or \"PCIe\""),
        ] {
            let said = checked(inside, across).unwrap_err().to_string();
            assert!(said.contains(says), "{inside}, {across}: {said}");
        }
    }
}
