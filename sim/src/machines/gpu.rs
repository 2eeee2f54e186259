//! GPUs, by the names that drivers print.

use crate::BytesPerSec;

/// Generation of a GPU, as far as collectives tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// Compute capability 7.0 (V100) and 7.5 (T4, RTX 20).
    Volta,
    /// 8.x: A100, and Ada's 8.9 (L40S, RTX 40).
    Ampere,
    /// 9.0: H100, H200, GH200.
    Hopper,
    /// 10.x: B200, GB200.
    Blackwell,
    /// AMD's MI300 and later.
    Cdna,
}

/// What a GPU puts into the joint of its node: so many links, each so fast one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Port {
    /// Links of one GPU.
    pub links: u32,
    /// GB/s (1e9) of one link, one way, as a collective can use it.
    pub gbps: f64,
    /// Where both figures are from.
    pub source: &'static str,
}

impl Port {
    /// All links together, one way.
    pub fn bandwidth(&self) -> BytesPerSec {
        BytesPerSec((f64::from(self.links) * self.gbps * 1e9) as u64)
    }
}

/// One kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// What it is called.
    pub name: &'static str,
    /// Words that all occur in the names that drivers print for it, in capitals.
    words: &'static [&'static str],
    /// Its generation.
    pub generation: Generation,
    /// NVLink or xGMI; `None` where it has none.
    pub nvlink: Option<Port>,
    /// PCI Express, 16 lanes.
    pub pcie: Port,
}

const fn nvlink(links: u32, gbps: f64, source: &'static str) -> Option<Port> {
    Some(Port { links, gbps, source })
}

/// Links: vendor's datasheets. Speed: 20 GB/s of NVLink 2 and 3, 20.6 of 4, 40.1 of 5 are what NCCL reckons with
/// (`src/graph/topo.h`), less than the nominal 25 and 50.
const NVLINK2: Option<Port> = nvlink(6, 20.0, "V100 datasheet: 6 NVLinks; NCCL topo.h: 20 GB/s each");
const NVLINK3: Option<Port> = nvlink(12, 20.0, "A100 datasheet: 12 NVLinks; NCCL topo.h: 20 GB/s each");
const NVLINK4: Option<Port> = nvlink(18, 20.6, "H100 datasheet: 18 NVLinks; NCCL topo.h: 20.6 GB/s each");
const NVLINK5: Option<Port> = nvlink(18, 40.1, "B200 datasheet: 18 NVLinks; NCCL topo.h: 40.1 GB/s each");
const XGMI3: Option<Port> =
    nvlink(7, 64.0, "MI300X data sheet: 7 Infinity Fabric links of 128 GB/s both ways");
const XGMI4: Option<Port> =
    nvlink(7, 76.8, "MI355X data sheet: 7 Infinity Fabric links of 153.6 GB/s both ways");

const fn pcie(gbps: f64, source: &'static str) -> Port {
    Port { links: 1, gbps, source }
}

const GEN3: Port = pcie(12.0, "PCIe 3.0 x16 as NCCL reckons (topo.h): 0.75 GB/s a lane");
const GEN4: Port = pcie(24.0, "PCIe 4.0 x16 as NCCL reckons (topo.h): 1.5 GB/s a lane");
const GEN5: Port = pcie(48.0, "PCIe 5.0 x16 as NCCL reckons (topo.h): 3 GB/s a lane");

const fn gpu(
    name: &'static str,
    words: &'static [&'static str],
    generation: Generation,
    nvlink: Option<Port>,
    pcie: Port,
) -> Gpu {
    Gpu { name, words, generation, nvlink, pcie }
}

/// Every GPU that is known. A name is matched from the top: the more particular comes first.
pub const GPUS: [Gpu; 18] = [
    gpu("GB200", &["GB200"], Generation::Blackwell, NVLINK5, GEN5),
    gpu("B200", &["B200"], Generation::Blackwell, NVLINK5, GEN5),
    gpu("GH200", &["GH200"], Generation::Hopper, NVLINK4, GEN5),
    gpu("H200", &["H200"], Generation::Hopper, NVLINK4, GEN5),
    gpu("H100 PCIe", &["H100", "PCIE"], Generation::Hopper, None, GEN5),
    gpu("H100 SXM", &["H100"], Generation::Hopper, NVLINK4, GEN5),
    gpu("A100 PCIe", &["A100", "PCIE"], Generation::Ampere, None, GEN4),
    gpu("A100 SXM", &["A100"], Generation::Ampere, NVLINK3, GEN4),
    gpu("V100 PCIe", &["V100", "PCIE"], Generation::Volta, None, GEN3),
    gpu("V100 SXM", &["V100"], Generation::Volta, NVLINK2, GEN3),
    gpu("L40S", &["L40S"], Generation::Ampere, None, GEN4),
    gpu("L4", &["L4"], Generation::Ampere, None, GEN4),
    gpu("T4", &["T4"], Generation::Volta, None, GEN3),
    gpu("A10G", &["A10G"], Generation::Ampere, None, GEN4),
    gpu("RTX 4090", &["4090"], Generation::Ampere, None, GEN4),
    gpu("RTX 2080 Ti", &["2080", "TI"], Generation::Volta, None, GEN3),
    gpu("MI300X", &["MI300X"], Generation::Cdna, XGMI3, GEN5),
    gpu("MI355X", &["MI355X"], Generation::Cdna, XGMI4, GEN5),
];

/// The GPU that a driver's or a person's name means.
pub(super) fn named(text: &str) -> Option<&'static Gpu> {
    let text = text.to_uppercase();
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    GPUS.iter().find(|gpu| gpu.words.iter().all(|word| words.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_found_by_what_drivers_print() {
        for (text, name) in [
            ("NVIDIA A100-SXM4-40GB", "A100 SXM"),
            ("A100-PCIE-40GB", "A100 PCIe"),
            ("Tesla V100-PCIE-32GB", "V100 PCIe"),
            ("A100 (ND A100 v4) on AKS", "A100 SXM"),
            ("GB200 (NVL72)", "GB200"),
            ("GH200 120GB", "GH200"),
            ("H100 80GB HBM3 (per text \"2 x p5.48xlarge\")", "H100 SXM"),
            ("unknown (g4dn, T4) karpenter EKS", "T4"),
            ("MI355X-class gfx950 (AMD, RCCL)", "MI355X"),
            ("GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ] {
            assert_eq!(named(text).map(|gpu| gpu.name), Some(name), "{text}");
        }
        assert_eq!(named("Voodoo 2"), None);
    }

    #[test]
    fn every_figure_has_a_source() {
        for gpu in GPUS {
            for port in [Some(gpu.pcie), gpu.nvlink].into_iter().flatten() {
                assert!(port.source.len() > 20 && port.bandwidth().0 > 1_000_000_000, "{}", gpu.name);
            }
        }
    }
}
