//! Large networks as layer tables: exact counts of parameters, arithmetic and memory traffic of every kernel, but no weights.
//!
//! ```text
//! layer   parameters        forward            by parameters       by input          SyncBN adds up
//! conv1   9,408             236 MFLOP          236 MFLOP           -                 -
//! bn1     64, 64            3 passes           2 passes            3 passes          129, 128 numbers
//! ```
//!
//! Counts are those of the papers' and PyTorch's networks, and tested against them. Predictions run a table's phases on the same
//! timeline as those of a real network.

mod kernel;
mod language;
mod own;
mod roofline;
mod table;
mod tensors;
mod vision;

pub use kernel::{Class, KernelCost};
pub use own::LayerTable;
pub use roofline::{Efficiency, Precision, moves};
pub use table::{TableLayer, Workload};

use crate::{Error, Result};
use allfold_base::suggest;

/// A workload in the table: its name, a description, and the function that makes it.
pub struct WorkloadEntry {
    /// The workload's name on the command line.
    pub name: &'static str,
    /// The workload in words.
    pub about: &'static str,
    make: fn() -> Workload,
}

const fn entry(name: &'static str, about: &'static str, make: fn() -> Workload) -> WorkloadEntry {
    WorkloadEntry { name, about, make }
}

/// Every workload.
pub const WORKLOADS: [WorkloadEntry; 10] = [
    entry("resnet18", "ResNet-18, 224 x 224", || vision::resnet("resnet18", false, [2, 2, 2, 2])),
    entry("resnet34", "ResNet-34, 224 x 224", || vision::resnet("resnet34", false, [3, 4, 6, 3])),
    entry("resnet50", "ResNet-50 v1.5, 224 x 224", || vision::resnet("resnet50", true, [3, 4, 6, 3])),
    entry("vgg16", "VGG-16, 224 x 224", vision::vgg16),
    entry("bert-base", "BERT base, 512 tokens", || language::bert("bert-base", 12, 768)),
    entry("bert-large", "BERT large, 512 tokens", || language::bert("bert-large", 24, 1024)),
    entry("gpt2", "GPT-2 of 124M, 1,024 tokens", || language::gpt2("gpt2", 12, 768)),
    entry("gpt2-medium", "GPT-2 of 355M, 1,024 tokens", || language::gpt2("gpt2-medium", 24, 1024)),
    entry("gpt2-large", "GPT-2 of 774M, 1,024 tokens", || language::gpt2("gpt2-large", 36, 1280)),
    entry("gpt2-xl", "GPT-2 of 1.5B, 1,024 tokens", || language::gpt2("gpt2-xl", 48, 1600)),
];

impl Workload {
    /// The workload of this name.
    ///
    /// # Errors
    /// If no workload has this name; the error names the nearest one, and all.
    pub fn named(name: &str) -> Result<Workload> {
        let wanted = name.to_lowercase().replace('_', "-");
        let names: Vec<&str> = WORKLOADS.iter().map(|row| row.name).collect();
        match WORKLOADS
            .iter()
            .find(|row| row.name == wanted || row.name.replace('-', "") == wanted.replace('-', ""))
        {
            Some(row) => Ok((row.make)()),
            None => Err(Error::Config(suggest::unknown("workload", name, &names))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each entry is a workload, the published number of parameters, and the published GFLOP of a forward pass over one sample.
    #[test]
    fn parameters_and_arithmetic_are_the_published_ones() {
        for (name, parameters, gflop, within) in [
            // torchvision's model table: parameters; multiply-adds, doubled.
            ("resnet18", 11_689_512, 2.0 * 1.814, 0.01),
            ("resnet34", 21_797_672, 2.0 * 3.664, 0.01),
            ("resnet50", 25_557_032, 2.0 * 4.089, 0.01),
            ("vgg16", 138_357_544, 2.0 * 15.47, 0.01),
            // Hugging Face's BertModel and GPT2LMHeadModel; arithmetic: 2 x parameters in products x tokens, and attention.
            (
                "bert-base",
                109_482_240,
                2.0 * 85.6e-3 * 512.0 + 4.0 * 12.0 * 512.0 * 512.0 * 768.0 / 1e9,
                0.02,
            ),
            (
                "bert-large",
                335_141_888,
                2.0 * 303.3e-3 * 512.0 + 4.0 * 24.0 * 512.0 * 512.0 * 1024.0 / 1e9,
                0.02,
            ),
            ("gpt2", 124_439_808, 2.0 * 123.6e-3 * 1024.0 + 4.0 * 12.0 * 1024.0 * 1024.0 * 768.0 / 1e9, 0.02),
            (
                "gpt2-medium",
                354_823_168,
                2.0 * 353.8e-3 * 1024.0 + 4.0 * 24.0 * 1024.0 * 1024.0 * 1024.0 / 1e9,
                0.02,
            ),
            (
                "gpt2-large",
                774_030_080,
                2.0 * 772.7e-3 * 1024.0 + 4.0 * 36.0 * 1024.0 * 1024.0 * 1280.0 / 1e9,
                0.02,
            ),
            (
                "gpt2-xl",
                1_557_611_200,
                2.0 * 1556.0e-3 * 1024.0 + 4.0 * 48.0 * 1024.0 * 1024.0 * 1600.0 / 1e9,
                0.02,
            ),
        ] {
            let workload = Workload::named(name).unwrap();
            assert_eq!(workload.parameters(), parameters, "{name}");
            let found = workload.forward_flops() as f64 / 1e9;
            assert!((found / gflop - 1.0).abs() < within, "{name}: {found} GFLOP, not {gflop}");
        }
        assert_eq!(WORKLOADS.len(), 10);
    }

    #[test]
    fn resnet50_has_the_tensors_of_the_real_network() {
        let workload = Workload::named("ResNet50").unwrap();
        let shapes: Vec<usize> = workload.places().iter().map(|place| place.range.len()).collect();
        assert_eq!((shapes.len(), shapes[0], shapes[1], shapes[2]), (161, 9_408, 64, 64));
        assert_eq!(shapes[159..], [2_048_000, 1000]);
        let error = Workload::named("resnet5O").map(drop).unwrap_err().to_string();
        assert!(error.contains("did you mean `resnet50`?"), "{error}");
    }

    #[test]
    fn a_backward_pass_does_twice_the_arithmetic() {
        for row in &WORKLOADS {
            let workload = (row.make)();
            let backward: u64 = workload
                .backward_phases(false)
                .into_iter()
                .filter_map(|p| workload.kernel(p))
                .map(|k| k.flops)
                .sum();
            let ratio = backward as f64 / workload.forward_flops() as f64;
            assert!((1.9..2.05).contains(&ratio), "{}: {ratio}", row.name);
        }
    }
}
