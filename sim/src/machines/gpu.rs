//! The table of GPUs, `gpus.toml`, found by the names that drivers print and people write; and a user's own GPU.
//!
//! ```text
//! gpus.toml ------> GpuModel: links, generation ----> machines, NCCL
//!                      '-- GpuRates: arithmetic, memory --> Device (predictions of Allfold's kernels), tables of layers
//! own.toml, [gpu] ---------'
//! ```

use super::form_factor::FormFactor;
use super::rates::GpuRates;
use crate::BytesPerSec;
use serde::Deserialize;
use std::sync::LazyLock;

/// The generation of a GPU, as far as collectives depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Generation {
    /// Compute capability 7.5 and older: P100, V100, T4, RTX 20.
    Volta,
    /// Compute capability 8.x: A100, and Ada's 8.9 (L40S, RTX 40).
    Ampere,
    /// Compute capability 9.0: H100, H200, GH200.
    Hopper,
    /// Compute capability 10.x and 12.0: B200, GB200, B300, GB300, RTX 50.
    Blackwell,
    /// AMD's MI100 and later.
    Cdna,
}

/// A GPU's links to the other GPUs of its node: their number, and the bandwidth of one link in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// The number of links of one GPU.
    pub links: u32,
    /// Bandwidth of one link in one direction that a collective can use, in GB/s (1e9).
    pub gb_per_s: f64,
}

impl Port {
    /// The bandwidth of all links together in one direction.
    pub fn bandwidth(&self) -> BytesPerSec {
        BytesPerSec((f64::from(self.links) * self.gb_per_s * 1e9) as u64)
    }
}

/// One kind of GPU: a row of the table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuModel {
    /// The GPU's name.
    pub name: String,
    /// Other names that people write.
    #[serde(default)]
    also: Vec<String>,
    /// Upper-case words that all occur in the names that drivers print for this GPU.
    #[serde(default)]
    words: Vec<String>,
    /// The GPU's generation.
    pub generation: Generation,
    /// The form factor; `None` for a GPU that is one with its board.
    form: Option<FormFactor>,
    /// The NVLink or xGMI links; `None` for a GPU without them.
    pub nvlink: Option<Port>,
    /// The NVLinks of a card through bridges, where a host has them; `None` for a GPU without such a bridge.
    pub bridge: Option<Port>,
    /// The number of cards that a bridge joins.
    #[serde(default = "two")]
    pub bridged: u32,
    /// The PCI Express link with 16 lanes.
    pub pcie: Port,
    /// The boost clock in GHz.
    #[serde(default = "usual_clock")]
    pub clock: f64,
    /// The rates of arithmetic and memory; `None` for a GPU for which kernels are not predicted.
    pub rates: Option<GpuRates>,
    /// The source of these figures.
    #[serde(default)]
    pub source: String,
}

/// GHz of a GPU whose clock is not stated: between those of an A100 and of an H100.
pub const USUAL_CLOCK: f64 = 1.7;

fn usual_clock() -> f64 {
    USUAL_CLOCK
}

fn two() -> u32 {
    2
}

#[derive(Default, Deserialize)]
struct Table {
    gpu: Vec<GpuModel>,
}

/// The rows of the table. A test rules out a table that cannot be read.
static TABLE: LazyLock<Vec<GpuModel>> = LazyLock::new(|| {
    let mut rows = toml::from_str::<Table>(include_str!("gpus.toml")).unwrap_or_default().gpu;
    for row in &mut rows {
        row.rates = row.rates.take().map(|rates| rates.called(&row.name));
    }
    rows
});

impl GpuModel {
    /// Every known GPU.
    pub fn all() -> &'static [GpuModel] {
        &TABLE
    }

    /// The names of all GPUs.
    pub fn names() -> Vec<&'static str> {
        TABLE.iter().map(|gpu| &*gpu.name).collect()
    }

    /// The GPU model for a name as a driver prints it or as a person writes it: the first row whose words all occur.
    pub fn named(text: &str) -> Option<&'static GpuModel> {
        let text = text.to_uppercase();
        TABLE.iter().find(|gpu| gpu.words.iter().all(|word| stands_in(word, &text)))
    }

    /// The GPU with exactly this name, or one of its other names. Case, spaces, `-` and `_` make no difference. A name without a form
    /// factor stands for the first in which the GPU is made, and a GPU of one form factor also has the name with it: `T4 PCIe`.
    pub(crate) fn called(name: &str) -> Option<&'static GpuModel> {
        let (plain, form) = FormFactor::split(name);
        let form = form.or_else(|| made(&plain).first().copied());
        TABLE.iter().find(|gpu| gpu.form == form && gpu.is(&plain))
    }

    /// Whether this is a name of the GPU, in lower case without spaces and form factor.
    fn is(&self, plain: &str) -> bool {
        std::iter::once(&self.name).chain(&self.also).any(|name| FormFactor::split(name).0 == plain)
    }

    /// What is wrong with a GPU's name that ends with a form factor in which that GPU is not made, and what would be right; `None` for
    /// any other name. `known`: the names that are right, which may have form factors themselves.
    pub(crate) fn refuse(gpu: &str, known: &[&str]) -> Option<String> {
        let (plain, form) = FormFactor::split(gpu);
        let made = made(&plain);
        let form = form.filter(|form| !made.contains(form))?;
        let known: Vec<_> = known.iter().map(|known| (*known, FormFactor::split(known))).collect();
        let (name, _) = known.iter().find(|(_, (name, _))| *name == plain)?;
        let listed = |made: FormFactor| known.iter().any(|(_, known)| *known == (plain.clone(), Some(made)));
        let right = made.iter().enumerate().filter(|(at, made)| *at == 0 || listed(**made));
        let short =
            FormFactor::ALL.iter().find_map(|form| name.strip_suffix(form.name())).unwrap_or(name).trim_end();
        let right: Vec<String> = right.map(|(_, made)| format!(" or `{short} {made}`")).collect();
        Some(format!("there is no {short} {form}; write `{short}`{}", right.concat()))
    }

    /// What is wrong with a text that names this GPU, and form factors in none of which it is made; `None` for any other text.
    pub(super) fn refuse_form(&self, text: &str) -> Option<String> {
        let text = text.to_uppercase();
        let says = |form: &FormFactor| stands_in(&form.name().to_uppercase(), &text);
        let said: Vec<FormFactor> = [FormFactor::Sxm, FormFactor::Pcie].into_iter().filter(says).collect();
        // A GPU with a form factor in its name was found by that form factor.
        let (plain, form) = FormFactor::split(&self.name);
        let made = made(&plain);
        let wrong =
            said.first().filter(|_| form.is_none() && !said.iter().any(|said| made.contains(said)))?;
        GpuModel::refuse(&format!("{} {wrong}", self.name), &GpuModel::names())
    }
}

/// The form factors in which a GPU is made, by its name in lower case without spaces; first the one that its plain name means. Empty for
/// a GPU that is one with its board, or is unknown.
fn made(plain: &str) -> Vec<FormFactor> {
    let mut forms: Vec<_> = TABLE.iter().filter(|gpu| gpu.is(plain)).filter_map(|gpu| gpu.form).collect();
    forms.sort_unstable();
    forms
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
            assert_eq!(GpuModel::named(text).map(|gpu| &*gpu.name), Some(name), "{text}");
        }
        for text in ["Voodoo 2", "AWS Trainium2", "Gaudi 3", "TPU v5p", "A1000"] {
            assert_eq!(GpuModel::named(text), None, "{text}");
        }
    }

    #[test]
    fn a_form_factor_is_taken_where_the_gpu_is_made_in_it() {
        let refused = |text: &str| GpuModel::named(text).unwrap().refuse_form(text);
        for gpu in GpuModel::all() {
            assert_eq!(gpu.refuse_form(&gpu.name), None, "{}", gpu.name);
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
    fn every_row_is_read_and_has_a_source() {
        let rows = toml::from_str::<Table>(include_str!("gpus.toml")).unwrap().gpu;
        assert!(rows.len() >= 43 && rows.len() == GpuModel::all().len());
        for gpu in GpuModel::all() {
            assert!(gpu.source.len() > 40 && !gpu.words.is_empty(), "{}", gpu.name);
            for port in [Some(gpu.pcie), gpu.nvlink].into_iter().flatten() {
                assert!(port.bandwidth().0 > 1_000_000_000, "{}", gpu.name);
            }
            if let Some(rates) = &gpu.rates {
                assert_eq!((rates.check(), &rates.name), (Ok(()), &gpu.name));
            }
            assert_eq!(GpuModel::called(&gpu.name).map(|found| &found.name), Some(&gpu.name));
        }
    }

    #[test]
    fn a_form_factor_is_refused_where_the_gpu_is_not_made_in_it() {
        let known = ["a100", "t4", "GB200", "H200", "H200 NVL"];
        let refused = |gpu: &str| GpuModel::refuse(gpu, &known);
        assert_eq!(refused("T4 SXM").unwrap(), "there is no t4 SXM; write `t4` or `t4 PCIe`");
        assert_eq!(refused("gb200-pcie").unwrap(), "there is no GB200 PCIe; write `GB200`");
        assert_eq!(
            refused("H200 PCIe").unwrap(),
            "there is no H200 PCIe; write `H200` or `H200 SXM` or `H200 NVL`"
        );
        // A list without a GPU's card does not suggest the card.
        assert_eq!(
            GpuModel::refuse("v100 NVL", &["V100 SXM"]).unwrap(),
            "there is no V100 NVL; write `V100` or `V100 SXM`"
        );
        for gpu in ["T4 PCIe", "A100", "A100 SXM", "A100-PCIe", "H200_SXM", "Voodoo SXM", "SXM", ""] {
            assert_eq!(refused(gpu), None, "{gpu}");
        }
        let called = |name: &str| GpuModel::called(name).map(|gpu| &*gpu.name);
        assert_eq!(
            (called("T4 PCIe"), called("a100"), called("GH200 SXM")),
            (Some("T4"), Some("A100 SXM"), None)
        );
    }
}
