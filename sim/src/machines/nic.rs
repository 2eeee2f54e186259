//! NICs, from free text: `8x400Gb/s IB NDR`, `4x Slingshot-11 200 Gb/s`, `one 400 Gb/s-class NIC per GPU`, `EFA`.
//!
//! Rules, in order; a value that no rule finds is assumed and reported as assumed:
//!
//! ```text
//! fabric   sockets, TCPXO, TCPX, EFA, Slingshot, RoCE, InfiniBand: the first of these words
//! count    "per GPU": one each, else "8x", "dual", "8 NICs", else an instance type's, else 1 (assumed)
//! speed    "400Gb/s", "100GbE", else an instance type's, else what NDR, HDR, ConnectX-7 or the fabric has (assumed)
//! direct   GPUDirect RDMA: not over sockets, not with EFA before A100, not with GeForce, not where the text denies it; else yes
//! ```

use super::amounts;
use super::gpu::{Generation, GpuModel};

allfold_base::named! {
    /// The kind of network between nodes.
    pub enum Fabric {
        /// The kernel's TCP sockets, over any network device.
        Sockets = "sockets",
        /// Google's GPUDirect-TCPXO.
        TcpXo = "TCPXO",
        /// Google's GPUDirect-TCPX.
        TcpX = "TCPX",
        /// Amazon's Elastic Fabric Adapter.
        Efa = "EFA",
        /// HPE Slingshot.
        Slingshot = "Slingshot",
        /// RDMA over Ethernet.
        Roce = "RoCE",
        /// InfiniBand.
        InfiniBand = "InfiniBand",
        /// The text does not name the fabric.
        Unknown = "unknown fabric",
    }
}

/// The NICs of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nics {
    /// The number of NICs of a node.
    pub count: u32,
    /// Speed of each NIC in one direction, in Gb/s.
    pub gbit_per_s: f64,
    /// The protocol that the NICs speak.
    pub fabric: Fabric,
    /// Whether NICs access GPU memory directly (GPUDirect RDMA); otherwise every byte is copied through host memory.
    pub gpudirect: bool,
}

impl std::fmt::Display for Nics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} NICs of {} Gb/s, {}", self.count, self.gbit_per_s, self.fabric)
    }
}

/// Cloud instance types with known NICs: (name, number of NICs, Gb/s of each, source).
const INSTANCES: [(&str, u32, f64, &str); 6] = [
    ("p4d", 4, 100.0, "AWS P4 instances: 4 x 100 Gb/s EFA"),
    ("p6-b200", 8, 400.0, "AWS P6-B200 instances: 3,200 Gb/s EFA as 8 x 400"),
    ("p6-b300", 16, 400.0, "AWS P6-B300 instances: 6,400 Gb/s EFA as 16 x 400"),
    ("p5en", 16, 200.0, "AWS P5en instances: 3,200 Gb/s EFA as 16 x 200"),
    ("p5", 32, 100.0, "AWS P5 instances: 3,200 Gb/s EFA as 32 x 100"),
    ("p3dn", 1, 100.0, "AWS P3dn instances: 100 Gb/s"),
];

/// The speed in Gb/s that follows from the name of a link generation or a card, for texts without a number.
const CARDS: [(&str, f64); 12] = [
    ("xdr", 800.0),
    ("ndr200", 200.0),
    ("ndr", 400.0),
    ("hdr100", 100.0),
    ("hdr", 200.0),
    ("edr", 100.0),
    ("fdr", 56.0),
    ("connectx-8", 800.0),
    ("connectx-7", 400.0),
    ("cx-7", 400.0),
    ("connectx-6", 200.0),
    ("bluefield-3", 400.0),
];

/// The words in the line of an assumption that replaces a number or a speed of NICs which a text does not give.
pub(super) const UNSAID: &str = "does not say how";

/// The greatest speed of a NIC in Gb/s; a greater number in a text is the speed of a whole node.
const FASTEST: f64 = 800.0;

/// Reads the NICs of a node from `text`. `gpus` GPUs of the node, of kind `gpu`, take part. Every assumption is added to `assumed`.
pub(super) fn read(text: &str, gpus: u32, gpu: &GpuModel, assumed: &mut Vec<String>) -> Nics {
    let lower = text.to_lowercase();
    let fabric = fabric(&lower);
    if fabric == Fabric::Unknown {
        assumed.push(format!("`{text}` names no known network fabric"));
    } else if fabric == Fabric::Sockets && plain(&lower) {
        assumed.push(format!("`{text}` does not mention RDMA: sockets assumed"));
    } else if open(&lower) {
        assumed.push(format!("`{text}` names no transport: sockets assumed"));
    }
    let per_gpu = counts_per_gpu(text);
    let (counted, rate) = (amounts::count(text), amounts::speed(text));
    // `one NIC per GPU` and `2x200Gb/s per GPU` count per GPU; `8x400Gb/s, one per GPU` counts the NICs of the node.
    let of_all = |each: u32| if each >= gpus { each } else { each.saturating_mul(gpus) };
    let counted = if per_gpu { Some(of_all(counted.unwrap_or(1))) } else { counted };
    let instance = INSTANCES.iter().find(|(name, ..)| lower.contains(name));
    if let (Some((name, count, gbit_per_s, source)), true) = (instance, counted.is_none() || rate.is_none()) {
        assumed.push(format!("{name}: {source}"));
        let gpudirect = gpudirect(&lower, fabric, gpu, assumed);
        return Nics { count: *count, gbit_per_s: *gbit_per_s, fabric, gpudirect };
    }
    if let (None, Some(all)) = (counted, rate.filter(|rate| *rate > FASTEST)) {
        let each = if fabric == Fabric::Efa { 100.0 } else { all / f64::from(gpus.max(1)) };
        assumed.push(format!("{all} Gb/s are those of all NICs of a node, {each} each"));
        let gpudirect = gpudirect(&lower, fabric, gpu, assumed);
        return Nics { count: (all / each).round() as u32, gbit_per_s: each, fabric, gpudirect };
    }
    let count = counted
        .or_else(|| {
            // HPE Cray EX nodes have two NICs for four A100 GPUs, or four NICs for four GH200 or four A100 GPUs.
            let pairs = lower.contains("slingshot").then_some(gpus.div_ceil(2))?;
            assumed.push(format!("`{text}` {UNSAID} many NICs a node has: one for two GPUs, {pairs}"));
            Some(pairs)
        })
        .unwrap_or_else(|| {
            assumed.push(format!("`{text}` {UNSAID} many NICs a node has: 1"));
            1
        });
    let gbit_per_s = rate.unwrap_or_else(|| {
        let card = CARDS.iter().find(|(name, _)| lower.contains(name));
        let (gbit_per_s, why) = match fabric {
            Fabric::InfiniBand | Fabric::Roce | Fabric::Unknown if card.is_some() => {
                let (name, gbit_per_s) = card.copied().unwrap_or(("", 0.0));
                assumed.push(format!("`{text}` {UNSAID} fast a NIC is: {name} has {gbit_per_s} Gb/s"));
                return gbit_per_s;
            }
            Fabric::Efa if gpu.name == "T4" => (50.0, "AWS G4dn instances of one GPU have up to 50"),
            Fabric::Efa => (100.0, "EFA's first generation has 100"),
            Fabric::Slingshot => (200.0, "Slingshot-11 has 200"),
            // Sockets use the network device that the text names.
            Fabric::Sockets if lower.contains("slingshot") => (200.0, "Slingshot-11 has 200"),
            Fabric::Sockets if lower.contains("ipoib") => (200.0, "HDR InfiniBand has 200"),
            Fabric::Sockets if lower.contains("connectx") => (100.0, "ConnectX cards have 100 or more"),
            _ => (10.0, "NCCL's default is 10"),
        };
        assumed.push(format!("`{text}` {UNSAID} fast a NIC is: {why} Gb/s"));
        gbit_per_s
    });
    Nics { count, gbit_per_s, fabric, gpudirect: gpudirect(&lower, fabric, gpu, assumed) }
}

/// Whether NICs have GPUDirect RDMA: not over sockets, not with EFA before the A100's instances (AWS: P3dn and G4dn copy through
/// the host), not with GeForce, not if the text denies it or says that GPU and NIC are on different CPU sockets; else yes.
fn gpudirect(lower: &str, fabric: Fabric, gpu: &GpuModel, assumed: &mut Vec<String>) -> bool {
    let lower = lower.replace([' ', '-'], "");
    let denied = ["directrdmadisabled", "nogpudirect", "withoutgpudirect", "nogdr", "acrosssockets"];
    if fabric == Fabric::Sockets || denied.iter().any(|words| lower.contains(words)) {
        return false;
    }
    match fabric {
        Fabric::Efa if gpu.generation < Generation::Ampere => {
            assumed.push(format!("EFA with a {} copies through the host's memory", gpu.name));
            false
        }
        // GeForce drivers do not give NICs access to GPU memory.
        _ if gpu.name.starts_with("RTX") => {
            assumed.push(format!("a {} has no GPUDirect RDMA", gpu.name));
            false
        }
        _ => true,
    }
}

/// Whether a text counts the NICs of a GPU, not those of a node.
pub(super) fn counts_per_gpu(text: &str) -> bool {
    let lower = text.to_lowercase();
    lower.contains("per gpu") || lower.contains("each gpu")
}

/// Whether a text names a fabric, a card or an instance type.
pub(super) fn says_kind(text: &str) -> bool {
    let lower = text.to_lowercase();
    fabric(&lower) != Fabric::Unknown
        || CARDS.iter().any(|(name, _)| lower.contains(name))
        || INSTANCES.iter().any(|(name, ..)| lower.contains(name))
}

/// Whether a word, in lower case, names a cloud's instance type.
pub(super) fn is_instance(word: &str) -> bool {
    INSTANCES.iter().any(|(name, ..)| word.starts_with(name))
}

fn fabric(lower: &str) -> Fabric {
    // "across sockets" means CPU sockets, not the transport.
    let lower = lower.replace("across sockets", "");
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    // A version or a speed may follow a fabric's name: `RoCEv2`, `NDR400`, `EFAv3`.
    let bare =
        |word: &str| word.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('v').to_string();
    let has = |names: &[&str]| words.iter().any(|word| names.contains(word) || names.contains(&&*bare(word)));
    match () {
        // The text lists guesses or excludes a fabric. TCP, if it is among the guesses, is the cautious choice.
        () if open(&lower) && has(&["tcp"]) => Fabric::Sockets,
        () if open(&lower) => Fabric::Unknown,
        // A fabric that is turned off, and IP over InfiniBand, mean sockets over any device.
        () if has(&["sockets", "socket", "tcp", "ipoib"]) || lower.contains("ib_disable=1") => {
            Fabric::Sockets
        }
        () if has(&["tcpxo"]) => Fabric::TcpXo,
        () if has(&["tcpx"]) => Fabric::TcpX,
        () if has(&["efa"]) => Fabric::Efa,
        () if has(&["slingshot", "cxi"]) => Fabric::Slingshot,
        () if has(&["roce", "ainic", "pollara"]) || lower.contains("spectrum-x") => Fabric::Roce,
        () if has(&["ib", "infiniband", "xdr", "hdr", "ndr", "edr", "fdr", "quantum"]) => Fabric::InfiniBand,
        () if has(&["rdma"]) => Fabric::Roce,
        // Ethernet without any mention of RDMA means sockets.
        () if has(&["ethernet", "gbe", "gige", "ena", "gvnic"]) || gbe(&words) => Fabric::Sockets,
        () => Fabric::Unknown,
    }
}

/// Whether the text names neither sockets nor TCP nor IPoIB, so that sockets are assumed because of Ethernet alone.
fn plain(lower: &str) -> bool {
    !["socket", "tcp", "ipoib", "ib_disable"].iter().any(|word| lower.contains(word))
}

/// Whether any word is an Ethernet speed, such as `100gbe`.
fn gbe(words: &[&str]) -> bool {
    words.iter().any(|word| {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        unit.len() < word.len() && ["gbe", "gige"].contains(&unit)
    })
}

/// Whether the text says that the transport is unknown; a text may call other things unknown and still name the transport.
fn open(lower: &str) -> bool {
    lower.contains("not stated")
        && (lower.contains("transport") || lower.trim_start().starts_with("not stated"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_text_gives_count_speed_and_fabric() {
        let gpu = super::super::GpuModel::named("A100-SXM4").unwrap();
        for (text, count, gbit_per_s, fabric, guesses) in [
            ("8x400Gb/s IB NDR with SHARP (CoreWeave)", 8, 400.0, Fabric::InfiniBand, 0),
            ("16x100Gb/s RoCE CX-5 (OCI BM.GPU.B4.8)", 16, 100.0, Fabric::Roce, 0),
            ("4x Slingshot-11 200 Gb/s (one per GH200) via aws-ofi-nccl", 4, 200.0, Fabric::Slingshot, 0),
            ("2x HPE Slingshot-11 (200 Gb/s) per node via libfabric/cxi", 2, 200.0, Fabric::Slingshot, 0),
            ("one 400 Gb/s-class NIC per GPU (plateau 48.9 GB/s)", 8, 400.0, Fabric::Unknown, 1),
            ("RoCE mlx5_0, NCCL log says speed=25000 (25 Gb/s)", 1, 25.0, Fabric::Roce, 1),
            ("8x200Gb/s gVNIC GPUDirect-TCPXO (GCP a3-megagpu-8g)", 8, 200.0, Fabric::TcpXo, 0),
            ("4x200Gb/s gVNIC GPUDirect-TCPX (GCP a3-highgpu-8g)", 4, 200.0, Fabric::TcpX, 0),
            ("ConnectX RDMA-capable NIC; NCCL_IB_DISABLE=1 in the command", 1, 100.0, Fabric::Sockets, 2),
            (
                "p3dn by name (100 Gb/s instance); transport (TCP or EFA) not stated",
                1,
                100.0,
                Fabric::Sockets,
                2,
            ),
            ("1x200Gb/s IB HDR CX-6, GPU and NIC across sockets/SYS", 1, 200.0, Fabric::InfiniBand, 0),
            ("EFA, p5.48xlarge", 32, 100.0, Fabric::Efa, 1),
            ("IPoIB: sockets over IPoIB", 1, 200.0, Fabric::Sockets, 2),
            ("EFA", 1, 100.0, Fabric::Efa, 2),
            ("2x100GbE RoCEv2", 2, 100.0, Fabric::Roce, 0),
            ("8 x 800 Gb/s InfiniBand XDR800", 8, 800.0, Fabric::InfiniBand, 0),
            ("8 ConnectX-7 NDR", 8, 400.0, Fabric::InfiniBand, 1),
            ("2x200Gb/s IB per GPU", 16, 200.0, Fabric::InfiniBand, 0),
            ("8x400Gb/s IB, one NIC per GPU", 8, 400.0, Fabric::InfiniBand, 0),
            ("4x100Gb/s with GPUDirect RDMA", 4, 100.0, Fabric::Roce, 0),
            ("dual 25GbE", 2, 25.0, Fabric::Sockets, 1),
            ("3200 Gbps EFAv2", 32, 100.0, Fabric::Efa, 1),
            ("6.4 Tb/s RoCE in all", 8, 800.0, Fabric::Roce, 1),
            ("p5en.48xlarge, EFAv3", 16, 200.0, Fabric::Efa, 1),
            ("8x400Gb/s Spectrum-X Ethernet", 8, 400.0, Fabric::Roce, 0),
            ("10 Gb Ethernet", 1, 10.0, Fabric::Sockets, 2),
        ] {
            let mut assumed = Vec::new();
            let found = read(text, 8, gpu, &mut assumed);
            assert_eq!((found.count, found.gbit_per_s, found.fabric), (count, gbit_per_s, fabric), "{text}");
            assert_eq!(assumed.len(), guesses, "{text}: {assumed:?}");
        }
    }

    #[test]
    fn what_is_copied_through_the_host_is_told_from_gpudirect() {
        for (gpu, text, direct) in [
            ("A100-SXM4", "8x200Gb/s IB HDR", true),
            ("A100-SXM4", "1x200Gb/s IB HDR CX-6, GPU and NIC across sockets/SYS", false),
            ("V100-SXM2", "RoCE mlx5_0; GPU Direct RDMA Disabled", false),
            ("A100-SXM4", "TCP sockets over 2x Slingshot-11", false),
            ("A100-SXM4", "4x100Gb/s EFA", true),
            ("Tesla T4", "EFA", false),
            ("V100-SXM2", "100 Gb/s; transport (TCP or EFA) not stated", false),
            ("GeForce RTX 4090", "1x100Gb/s RoCE", false),
        ] {
            let found = read(text, 8, super::super::GpuModel::named(gpu).unwrap(), &mut Vec::new());
            assert_eq!(found.gpudirect, direct, "{gpu}, {text}");
        }
    }
}
