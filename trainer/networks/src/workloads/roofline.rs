//! How long a device takes for a kernel: a roofline, and the fraction of it that each class of kernels reaches.
//!
//! ```text
//! time = launches x launch + max( flops / (peak x reached), bytes / (memory x reached) )
//! ```
//!
//! Source of the model: S. Williams, A. Waterman and D. Patterson, Comm. ACM 52 (2009). Peaks, memory and launches are those of
//! [`GpuRates`]. The fractions are assumed, the same for all devices, and fitted to four published figures of ResNet-50
//! on one device (see [`Class::efficiency`]).

use super::kernel::{Class, KernelCost};
use allfold_base::Picos;
use allfold_sim::machines::GpuRates;

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

impl Precision {
    /// The peak rate of a GPU in TFLOP/s.
    pub fn peak(self, gpu: &GpuRates) -> f64 {
        match self {
            Precision::F32 => gpu.f32,
            Precision::Tf32 => gpu.tf32.unwrap_or(gpu.f32),
            Precision::Half => gpu.f16,
        }
    }
}

impl KernelCost {
    /// How long the kernel takes over `n` samples.
    pub fn time(&self, gpu: &GpuRates, n: usize, precision: Precision) -> Picos {
        let reached = self.class.efficiency();
        let share = match precision {
            Precision::Half => reached.half,
            Precision::Tf32 if gpu.tf32.is_some() => reached.tf32,
            _ => reached.f32,
        };
        let compute = self.flops as f64 * n as f64 / (precision.peak(gpu) * share);
        // Autocast reads the f32 weights and writes them in half precision; the kernel then reads these.
        let each = if precision == Precision::Half { 8 } else { 4 };
        let bytes =
            self.values as f64 * n as f64 * precision.bytes() as f64 + self.weights as f64 * f64::from(each);
        let memory = bytes * 1000.0 / (gpu.memory.gb_per_s() * reached.memory);
        gpu.launch.picos() * u64::from(self.launches) + Picos(compute.max(memory).ceil() as u64)
    }
}

/// The time in which one kernel moves `bytes` bytes on a GPU.
pub fn moves(gpu: &GpuRates, bytes: u64) -> Picos {
    let time = bytes as f64 * 1000.0 / (gpu.memory.gb_per_s() * Class::Elementwise.efficiency().memory);
    gpu.launch.picos() + Picos(time.ceil() as u64)
}
