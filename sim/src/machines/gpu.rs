//! Models of GPUs, found by the names that drivers print.

use crate::{BytesPerSec, FormFactor};

/// The generation of a GPU, as far as collectives depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// Compute capability 7.5 and older: P100, V100, T4, RTX 20.
    Volta,
    /// Compute capability 8.x: A100, and Ada's 8.9 (L40S, RTX 40).
    Ampere,
    /// Compute capability 9.0: H100, H200, GH200.
    Hopper,
    /// Compute capability 10.x and 12.0: B200, GB200, B300, GB300, RTX 50.
    Blackwell,
    /// AMD's MI300 and later.
    Cdna,
}

/// A GPU's links to the other GPUs of its node: their number, and the bandwidth of one link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Port {
    /// The number of links of one GPU.
    pub links: u32,
    /// Bandwidth of one link in one direction that a collective can use, in GB/s (1e9).
    pub gb_per_s: f64,
    /// The source of both figures.
    pub source: &'static str,
}

impl Port {
    /// The bandwidth of all links together in one direction.
    pub fn bandwidth(&self) -> BytesPerSec {
        BytesPerSec((f64::from(self.links) * self.gb_per_s * 1e9) as u64)
    }
}

/// One kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuModel {
    /// The GPU's name.
    pub name: &'static str,
    /// Upper-case words that all occur in the names that drivers print for this GPU.
    words: &'static [&'static str],
    /// The GPU's generation.
    pub generation: Generation,
    /// The NVLink or xGMI links; `None` for a GPU without them.
    pub nvlink: Option<Port>,
    /// The PCI Express link with 16 lanes.
    pub pcie: Port,
}

const fn nvlink(links: u32, gb_per_s: f64, source: &'static str) -> Option<Port> {
    Some(Port { links, gb_per_s, source })
}

/// The numbers of NVLinks are from the vendors' datasheets. The speeds (20 GB/s for NVLink 2 and 3, 20.6 for NVLink 4, 40.1 for
/// NVLink 5) are those that NCCL assumes (`src/graph/topo.h`), less than the nominal 25 and 50.
const NVLINK2: Option<Port> = nvlink(6, 20.0, "V100 datasheet: 6 NVLinks; NCCL topo.h: 20 GB/s each");
const NVLINK3: Option<Port> = nvlink(12, 20.0, "A100 datasheet: 12 NVLinks; NCCL topo.h: 20 GB/s each");
const NVLINK1: Option<Port> = nvlink(4, 18.0, "P100 datasheet: 4 NVLinks; NCCL topo.h: 18 GB/s each");
const NVLINK3_8: Option<Port> = nvlink(8, 20.0, "A800: 400 GB/s, 8 of 12 NVLinks; NCCL topo.h: 20 GB/s each");
const NVLINK4_8: Option<Port> =
    nvlink(8, 20.6, "H800: 400 GB/s, 8 of 18 NVLinks; NCCL topo.h: 20.6 GB/s each");
const NVLINK4: Option<Port> = nvlink(18, 20.6, "H100 datasheet: 18 NVLinks; NCCL topo.h: 20.6 GB/s each");
const NVLINK5: Option<Port> = nvlink(18, 40.1, "B200 datasheet: 18 NVLinks; NCCL topo.h: 40.1 GB/s each");
const XGMI3: Option<Port> =
    nvlink(7, 64.0, "MI300X data sheet: 7 Infinity Fabric links of 128 GB/s both ways");
const XGMI4: Option<Port> =
    nvlink(7, 76.8, "MI355X data sheet: 7 Infinity Fabric links of 153.6 GB/s both ways");

const fn pcie(gb_per_s: f64, source: &'static str) -> Port {
    Port { links: 1, gb_per_s, source }
}

const GEN3: Port = pcie(12.0, "PCIe 3.0 x16 as NCCL reckons (topo.h): 0.75 GB/s a lane");
const GEN4: Port = pcie(24.0, "PCIe 4.0 x16 as NCCL reckons (topo.h): 1.5 GB/s a lane");
const GEN5: Port = pcie(48.0, "PCIe 5.0 x16 as NCCL reckons (topo.h): 3 GB/s a lane");
const GEN6: Port = pcie(96.0, "PCIe 6.0 x16 as NCCL reckons (topo.h): 6 GB/s a lane");

const fn gpu(
    name: &'static str,
    words: &'static [&'static str],
    generation: Generation,
    nvlink: Option<Port>,
    pcie: Port,
) -> GpuModel {
    GpuModel { name, words, generation, nvlink, pcie }
}

/// Every known GPU. The first model that matches a name is taken, so more specific names come first.
pub const GPU_MODELS: [GpuModel; 43] = [
    gpu("GB300", &["GB300"], Generation::Blackwell, NVLINK5, GEN5),
    gpu("GB200", &["GB200"], Generation::Blackwell, NVLINK5, GEN5),
    gpu("B300", &["B300"], Generation::Blackwell, NVLINK5, GEN6),
    gpu("B200", &["B200"], Generation::Blackwell, NVLINK5, GEN5),
    gpu("PRO 6000 Blackwell", &["PRO", "6000"], Generation::Blackwell, None, GEN5),
    gpu("RTX 5090", &["5090"], Generation::Blackwell, None, GEN5),
    gpu("GH200", &["GH200"], Generation::Hopper, NVLINK4, GEN5),
    gpu("H200 NVL", &["H200", "NVL"], Generation::Hopper, None, GEN5),
    gpu("H200", &["H200"], Generation::Hopper, NVLINK4, GEN5),
    gpu("H20", &["H20"], Generation::Hopper, NVLINK4, GEN5),
    gpu("H800 PCIe", &["H800", "PCIE"], Generation::Hopper, None, GEN5),
    gpu("H800", &["H800"], Generation::Hopper, NVLINK4_8, GEN5),
    gpu("H100 NVL", &["H100", "NVL"], Generation::Hopper, None, GEN5),
    gpu("H100 PCIe", &["H100", "PCIE"], Generation::Hopper, None, GEN5),
    gpu("H100 SXM", &["H100"], Generation::Hopper, NVLINK4, GEN5),
    gpu("A100 PCIe", &["A100", "PCIE"], Generation::Ampere, None, GEN4),
    gpu("A100 SXM", &["A100"], Generation::Ampere, NVLINK3, GEN4),
    gpu("A800 PCIe", &["A800", "PCIE"], Generation::Ampere, None, GEN4),
    gpu("A800", &["A800"], Generation::Ampere, NVLINK3_8, GEN4),
    gpu("V100S", &["V100S"], Generation::Volta, None, GEN3),
    gpu("V100 PCIe", &["V100", "PCIE"], Generation::Volta, None, GEN3),
    gpu("V100 SXM", &["V100"], Generation::Volta, NVLINK2, GEN3),
    gpu("L40S", &["L40S"], Generation::Ampere, None, GEN4),
    gpu("L40", &["L40"], Generation::Ampere, None, GEN4),
    gpu("L20", &["L20"], Generation::Ampere, None, GEN4),
    gpu("L4", &["L4"], Generation::Ampere, None, GEN4),
    gpu("A40", &["A40"], Generation::Ampere, None, GEN4),
    gpu("A30", &["A30"], Generation::Ampere, None, GEN4),
    gpu("A6000", &["A6000"], Generation::Ampere, None, GEN4),
    gpu("A5000", &["A5000"], Generation::Ampere, None, GEN4),
    gpu("6000 Ada", &["6000", "ADA"], Generation::Ampere, None, GEN4),
    gpu("T4", &["T4"], Generation::Volta, None, GEN3),
    gpu("A10G", &["A10G"], Generation::Ampere, None, GEN4),
    gpu("A10", &["A10"], Generation::Ampere, None, GEN4),
    gpu("P100 PCIe", &["P100", "PCIE"], Generation::Volta, None, GEN3),
    gpu("P100 SXM", &["P100"], Generation::Volta, NVLINK1, GEN3),
    gpu("RTX 4090", &["4090"], Generation::Ampere, None, GEN4),
    gpu("RTX 3090", &["3090"], Generation::Ampere, None, GEN4),
    gpu("RTX 2080 Ti", &["2080", "TI"], Generation::Volta, None, GEN3),
    gpu("MI300X", &["MI300X"], Generation::Cdna, XGMI3, GEN5),
    gpu("MI325X", &["MI325X"], Generation::Cdna, XGMI3, GEN5),
    gpu("MI350X", &["MI350X"], Generation::Cdna, XGMI4, GEN5),
    gpu("MI355X", &["MI355X"], Generation::Cdna, XGMI4, GEN5),
];

impl GpuModel {
    /// The GPU model for a name as a driver prints it or as a person writes it.
    pub fn named(text: &str) -> Option<&'static GpuModel> {
        let text = text.to_uppercase();
        GPU_MODELS.iter().find(|gpu| gpu.words.iter().all(|word| stands_in(word, &text)))
    }

    /// What is wrong with a text that names this GPU, and form factors in none of which it is made; `None` for any other text.
    pub(super) fn refuse_form(&self, text: &str) -> Option<String> {
        let text = text.to_uppercase();
        let says = |form: &FormFactor| stands_in(&form.name().to_uppercase(), &text);
        let said: Vec<FormFactor> = [FormFactor::Sxm, FormFactor::Pcie].into_iter().filter(says).collect();
        // A GPU with a form factor in its name was found by that form factor.
        let has_form = FormFactor::split(self.name).1.is_some();
        let made = FormFactor::of(self.name);
        let wrong = said.first().filter(|_| !said.iter().any(|said| made.contains(said)))?;
        let names: Vec<&str> = GPU_MODELS.iter().map(|gpu| gpu.name).collect();
        if has_form { None } else { FormFactor::refuse(&format!("{} {wrong}", self.name), &names) }
    }
}

/// Whether `word` occurs in `text` with no further letter next to one of its letters and no further digit next to one of its
/// digits: `H100SXM5` and `RTX4090` contain a GPU's name, but `GB200` does not contain `B200`, nor `A100` `A10`.
fn stands_in(word: &str, text: &str) -> bool {
    let alike = |one: Option<u8>, other: Option<u8>| match (one, other) {
        (Some(one), Some(other)) => {
            one.is_ascii_digit() && other.is_ascii_digit()
                || one.is_ascii_alphabetic() && other.is_ascii_alphabetic()
        }
        _ => false,
    };
    let (word, text) = (word.as_bytes(), text.as_bytes());
    text.windows(word.len()).enumerate().any(|(at, part)| {
        let before = at.checked_sub(1).and_then(|at| text.get(at)).copied();
        let after = text.get(at + word.len()).copied();
        part == word && !alike(before, word.first().copied()) && !alike(after, word.last().copied())
    })
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
            ("RTX2080Ti", "RTX 2080 Ti"),
            ("NVIDIA H20", "H20"),
            ("H100SXM5", "H100 SXM"),
            ("NVIDIA H100 NVL", "H100 NVL"),
            ("NVIDIA RTX 6000 Ada Generation", "6000 Ada"),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "PRO 6000 Blackwell"),
            ("GB300NVL72", "GB300"),
            ("NVIDIA B300 SXM6 AC", "B300"),
            ("NVIDIA A10", "A10"),
            ("Tesla V100S-PCIE-32GB", "V100S"),
        ] {
            assert_eq!(GpuModel::named(text).map(|gpu| gpu.name), Some(name), "{text}");
        }
        for text in ["Voodoo 2", "AWS Trainium2", "Gaudi 3", "TPU v5p", "MI250X", "A1000"] {
            assert_eq!(GpuModel::named(text), None, "{text}");
        }
    }

    #[test]
    fn a_form_factor_is_taken_where_the_gpu_is_made_in_it() {
        let refused = |text: &str| GpuModel::named(text).unwrap().refuse_form(text);
        for gpu in GPU_MODELS {
            assert_eq!(gpu.refuse_form(gpu.name), None, "{}", gpu.name);
        }
        for text in [
            "Tesla T4-PCIE-16GB",
            "NVIDIA B300 SXM6 AC",
            "H200 SXM, PCIe Gen5",
            "H200 NVL PCIe",
            "GB200 (NVL72)",
        ] {
            assert_eq!(refused(text), None, "{text}");
        }
        for (text, right) in [
            ("T4 SXM", "there is no T4 SXM; write `T4` or `T4 PCIe`"),
            ("NVIDIA L40S-SXM4", "there is no L40S SXM; write `L40S` or `L40S PCIe`"),
            ("H200-PCIE", "there is no H200 PCIe; write `H200` or `H200 SXM` or `H200 NVL`"),
            ("RTX4090 SXM", "there is no RTX 4090 SXM; write `RTX 4090` or `RTX 4090 PCIe`"),
            (
                "RTX PRO 6000 Blackwell SXM",
                "there is no PRO 6000 Blackwell SXM; write `PRO 6000 Blackwell` or `PRO 6000 Blackwell PCIe`",
            ),
            ("GH200 SXM", "there is no GH200 SXM; write `GH200`"),
            ("MI300X PCIe", "there is no MI300X PCIe; write `MI300X`"),
        ] {
            assert_eq!(refused(text).as_deref(), Some(right), "{text}");
        }
    }

    #[test]
    fn every_figure_has_a_source() {
        for gpu in GPU_MODELS {
            for port in [Some(gpu.pcie), gpu.nvlink].into_iter().flatten() {
                assert!(port.source.len() > 20 && port.bandwidth().0 > 1_000_000_000, "{}", gpu.name);
            }
        }
    }
}
