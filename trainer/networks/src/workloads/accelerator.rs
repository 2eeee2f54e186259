//! How long a device takes for a kernel: a roofline, and the fraction of it that each class of kernels reaches.
//!
//! ```text
//! time = launches x launch + max( flops / (peak x reached), bytes / (memory x reached) )
//! ```
//!
//! Source of the model: S. Williams, A. Waterman and D. Patterson, Comm. ACM 52 (2009). Peaks and memory are those of the
//! vendors' datasheets, dense. The fractions are assumed, the same for all devices, and fitted to four published figures of ResNet-50
//! on one device (see [`Class::efficiency`]).

use super::kernel::{Class, KernelCost};
use crate::{Error, Result};
use allfold_base::{FormFactor, Picos, suggest};

/// The precision in which a network is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Precision {
    /// f32 on ordinary cores, without tensor cores.
    F32,
    /// f32 with products rounded to 10 bits of mantissa, on tensor cores (A100 and later; older devices compute as
    /// [`Precision::F32`]).
    Tf32,
    /// f16 or bf16 on tensor cores with f32 parameters and gradients: automatic mixed precision.
    Half,
}

impl Precision {
    /// Bytes of an element of an activation.
    pub const fn bytes(self) -> u64 {
        match self {
            Precision::Half => 2,
            _ => 4,
        }
    }

    /// The precision's name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Half => "amp",
        }
    }
}

/// Shares of the peak and of the memory's rate that a class of kernel reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// The fraction of the peak rate of ordinary cores.
    pub f32: f64,
    /// The fraction of the peak rate of tensor cores in TF32.
    pub tf32: f64,
    /// The fraction of the peak rate of tensor cores in half precision.
    pub half: f64,
    /// The fraction of the memory's bandwidth.
    pub memory: f64,
    /// The source of these fractions.
    pub source: &'static str,
}

impl Class {
    /// The fractions of peak rates that this class of kernels reaches.
    pub const fn efficiency(self) -> Efficiency {
        match self {
            Class::Product => Efficiency {
                f32: 0.85,
                tf32: 0.70,
                half: 0.65,
                memory: 0.80,
                source: "large products by cuBLAS; Megatron-LM trains at 0.52 of the peak in all (Narayanan et al., SC 2021)",
            },
            Class::Convolution => Efficiency {
                f32: 0.75,
                tf32: 0.35,
                half: 0.40,
                memory: 0.70,
                source: "chosen to meet one V100 (f32, AMP) and one A100 (TF32, AMP) on ResNet-50: DeepLearningExamples, PyTorch",
            },
            Class::Attention => Efficiency {
                f32: 0.60,
                tf32: 0.40,
                half: 0.35,
                memory: 0.75,
                source: "assumed: batched products of 64 columns and softmax, not fused",
            },
            Class::Normalisation => Efficiency {
                f32: 0.5,
                tf32: 0.5,
                half: 0.5,
                memory: 0.80,
                source: "assumed: memory is what binds",
            },
            Class::Elementwise => Efficiency {
                f32: 0.5,
                tf32: 0.5,
                half: 0.5,
                memory: 0.85,
                source: "assumed: memory is what binds",
            },
        }
    }
}

/// An accelerator that workloads are predicted for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accelerator {
    /// The device's name in `allfold_sim::machines::GPU_MODELS`.
    pub name: &'static str,
    /// TFLOP/s on ordinary cores in f32.
    pub f32: f64,
    /// TFLOP/s on tensor cores in TF32, dense; the f32 rate if the device has no such cores.
    pub tf32: f64,
    /// TFLOP/s on tensor cores in f16, dense.
    pub half: f64,
    /// The memory bandwidth in GB/s.
    pub memory: f64,
    /// The size of the memory in GB.
    pub capacity: f64,
    /// The number of multiprocessors; the channels of an exchange occupy some of them.
    pub cores: u32,
    /// The source of these figures.
    pub source: &'static str,
}

const fn device(
    name: &'static str,
    [f32, tf32, half]: [f64; 3],
    [memory, capacity]: [f64; 2],
    cores: u32,
    source: &'static str,
) -> Accelerator {
    Accelerator { name, f32, tf32, half, memory, capacity, cores, source }
}

/// Every device.
pub const ACCELERATORS: [Accelerator; 17] = [
    device("V100 SXM", [15.7, 15.7, 125.0], [900.0, 32.0], 80, "V100 datasheet (NVIDIA, 2018), 32 GB"),
    device("V100 PCIe", [14.0, 14.0, 112.0], [900.0, 32.0], 80, "V100 datasheet (NVIDIA, 2018), 32 GB"),
    device("A100 SXM", [19.5, 156.0, 312.0], [2039.0, 80.0], 108, "A100 80 GB datasheet (NVIDIA, 2021)"),
    device("A100 PCIe", [19.5, 156.0, 312.0], [1935.0, 80.0], 108, "A100 80 GB datasheet (NVIDIA, 2021)"),
    device("H100 SXM", [67.0, 494.7, 989.4], [3350.0, 80.0], 132, "H100 datasheet (NVIDIA, 2023), dense"),
    device("H100 PCIe", [51.0, 378.0, 756.0], [2000.0, 80.0], 114, "H100 datasheet (NVIDIA, 2023), dense"),
    device("H200", [67.0, 494.7, 989.4], [4800.0, 141.0], 132, "H200 datasheet (NVIDIA, 2024), dense"),
    device(
        "GH200",
        [67.0, 494.7, 989.4],
        [4000.0, 96.0],
        132,
        "GH200 datasheet (NVIDIA, 2023), 96 GB, dense",
    ),
    device("B200", [75.0, 1100.0, 2250.0], [8000.0, 180.0], 148, "DGX B200 datasheet (NVIDIA, 2024), dense"),
    device(
        "GB200",
        [80.0, 1250.0, 2500.0],
        [8000.0, 186.0],
        148,
        "GB200 NVL72 datasheet (NVIDIA, 2024), dense",
    ),
    device("L40S", [91.6, 183.0, 362.0], [864.0, 48.0], 142, "L40S datasheet (NVIDIA, 2023), dense"),
    device(
        "RTX 4090",
        [82.6, 82.6, 165.2],
        [1008.0, 24.0],
        128,
        "Ada architecture white paper (NVIDIA, 2022), dense, f32 sums",
    ),
    device(
        "RTX 5090",
        [104.8, 104.8, 209.5],
        [1792.0, 32.0],
        170,
        "RTX Blackwell architecture white paper (NVIDIA, 2025), dense, f32 sums",
    ),
    device(
        "RTX 3090",
        [35.6, 35.6, 71.0],
        [936.0, 24.0],
        82,
        "GA102 architecture white paper (NVIDIA, 2021), dense, f32 sums",
    ),
    device(
        "RTX 2080 Ti",
        [13.4, 13.4, 53.8],
        [616.0, 11.0],
        68,
        "Turing architecture white paper (NVIDIA, 2018), reference card, f32 sums",
    ),
    device(
        "A10G",
        [31.2, 62.5, 125.0],
        [600.0, 24.0],
        80,
        "A10 datasheet (NVIDIA, 2021); A10G assumed alike",
    ),
    device("T4", [8.1, 8.1, 65.0], [320.0, 16.0], 40, "T4 datasheet (NVIDIA, 2018)"),
];

/// The time of a launch beyond the kernel itself: 3.8 us in all for a kernel of 2.9 us, launched without waiting for the one before
/// (NVIDIA developer blog, "Getting started with CUDA graphs", 2019).
const LAUNCH: Picos = Picos(900_000);

impl Accelerator {
    /// The accelerator of this name, or the first whose name begins with these whole words. Case, spaces, `-` and `_` make no
    /// difference. A GPU of one form factor also has the name with that form factor: `T4 PCIe`.
    ///
    /// # Errors
    /// No accelerator has this name, and the error names the nearest one, and all; or the GPU is not made in this form factor, and the
    /// error names those in which it is.
    pub fn named(name: &str) -> Result<&'static Accelerator> {
        let flat = |text: &str| text.to_lowercase().replace([' ', '-', '_'], "");
        let wanted = flat(name);
        let found = ACCELERATORS.iter().find(|device| flat(device.name) == wanted);
        // Whole words: `a10` is another GPU than `A100 SXM`.
        let begins = |name: &str| name.match_indices(' ').any(|(end, _)| flat(&name[..end]) == wanted);
        let found = found.or_else(|| ACCELERATORS.iter().find(|device| begins(device.name)));
        let plain = FormFactor::plain(name);
        let found = found.or_else(|| ACCELERATORS.iter().find(|device| Some(flat(device.name)) == plain));
        found.ok_or_else(|| {
            let names: Vec<&str> = ACCELERATORS.iter().map(|device| device.name).collect();
            let refused = FormFactor::refuse(name, &names);
            Error::Config(refused.unwrap_or_else(|| suggest::unknown("accelerator", name, &names)))
        })
    }

    /// The size of the memory in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        (self.capacity * 1e9) as u64
    }

    /// How long a kernel takes over `n` samples.
    pub fn time(&self, kernel: &KernelCost, n: usize, precision: Precision) -> Picos {
        let reached = kernel.class.efficiency();
        let (peak, share) = match precision {
            Precision::F32 => (self.f32, reached.f32),
            Precision::Tf32 if self.tf32 > self.f32 => (self.tf32, reached.tf32),
            Precision::Tf32 => (self.f32, reached.f32),
            Precision::Half => (self.half, reached.half),
        };
        let compute = kernel.flops as f64 * n as f64 / (peak * share);
        // Autocast reads the f32 weights and writes them in half precision; the kernel then reads these.
        let each = if precision == Precision::Half { 8 } else { 4 };
        let bytes = kernel.values as f64 * n as f64 * precision.bytes() as f64
            + kernel.weights as f64 * f64::from(each);
        let memory = bytes * 1000.0 / (self.memory * reached.memory);
        LAUNCH * u64::from(kernel.launches) + Picos(compute.max(memory).ceil() as u64)
    }

    /// The time to move `bytes` bytes in `launches` launches.
    pub fn moves(&self, bytes: u64, launches: u32) -> Picos {
        let time = bytes as f64 * 1000.0 / (self.memory * Class::Elementwise.efficiency().memory);
        LAUNCH * u64::from(launches) + Picos(time.ceil() as u64)
    }

    /// The least time for `flops` operations, at the device's peak rate.
    pub fn least(&self, flops: u64, precision: Precision) -> Picos {
        let peak = match precision {
            Precision::F32 => self.f32,
            Precision::Tf32 => self.tf32,
            Precision::Half => self.half,
        };
        Picos((flops as f64 / peak) as u64)
    }
}
