//! What a GPU computes: its peaks of arithmetic, and its memory.

use crate::quantity::{Bandwidth, Latency};
use serde::Deserialize;

/// The rates of a GPU for predictions of kernels: of a row of the table of GPUs, or of a user's own GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRates {
    /// The GPU's name; of a row of the table the row's.
    #[serde(default)]
    pub name: String,
    /// TFLOP/s on ordinary cores in f32.
    pub f32: f64,
    /// TFLOP/s on tensor cores in TF32, dense; `None` if the GPU has no such cores.
    pub tf32: Option<f64>,
    /// TFLOP/s on tensor cores in f16 with f32 sums, dense.
    pub f16: f64,
    /// TFLOP/s on tensor cores with FP8 operands, dense; `None` if the GPU has no such cores.
    pub fp8: Option<f64>,
    /// TFLOP/s on tensor cores with FP4 operands, dense; `None` if the GPU has no such cores.
    pub fp4: Option<f64>,
    /// The bandwidth of the memory.
    pub memory: Bandwidth,
    /// The size of the memory in GB (1e9 bytes).
    pub capacity: f64,
    /// The number of multiprocessors.
    pub cores: Option<u32>,
    /// The share of the peak in f16 that large networks reach in training.
    #[serde(default = "usual_efficiency")]
    pub efficiency: f64,
    /// The time of a kernel's launch beyond the kernel itself.
    #[serde(default = "usual_launch")]
    pub launch: Latency,
    /// The names of the GPU's devices: on tensor cores, and in f32.
    #[serde(skip)]
    pub(crate) devices: [String; 2],
}

/// The share that GPUs without a published training run are assumed to reach.
fn usual_efficiency() -> f64 {
    0.4
}

/// The launch of a CUDA kernel.
fn usual_launch() -> Latency {
    Latency::from_micros(0.9)
}

impl GpuRates {
    /// These rates under the GPU's name.
    pub(super) fn called(mut self, name: &str) -> GpuRates {
        let flat = name.to_lowercase().replace([' ', '-', '_'], "");
        let device = flat.strip_suffix("sxm").unwrap_or(&flat);
        self.devices = [device.to_string(), format!("{device}_f32")];
        self.name = name.into();
        self
    }

    /// Refuses figures that no GPU has.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let tf32 = self.tf32.unwrap_or(self.f32);
        for (key, value, most) in [
            ("f32", self.f32, 1e6),
            ("tf32", tf32, 1e6),
            ("f16", self.f16, 1e6),
            ("fp8", self.fp8.unwrap_or(self.f16), 1e6),
            ("fp4", self.fp4.unwrap_or(self.f16), 1e6),
            ("capacity", self.capacity, 1e6),
            ("efficiency", self.efficiency, 1.0),
        ] {
            if !(1e-3..=most).contains(&value) {
                return Err(format!("{key} = {value} is not possible; give 0.001 to {most}"));
            }
        }
        Ok(())
    }

    /// The size of the memory in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        (self.capacity * 1e9) as u64
    }
}
