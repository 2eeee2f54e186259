//! How long computation takes, by the roofline model.
//!
//! ```text
//! time = launches x launch + max( flops / (peak x efficiency), bytes / memory )
//! ```
//!
//! Work on narrow numbers (f16, bf16) takes half the bytes and the peak of the units for them, on devices that have such units.
//!
//! A model of one device, for virtual time; `efficiency` is the share of the peak that a real device achieves.
//! Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model", Comm. ACM 52 (2009).

use crate::{BytesPerSec, Error, FormFactor, Picos, Result};

/// An amount of computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceWork {
    /// Floating-point operations; a multiply-add is two.
    pub flops: u64,
    /// Bytes read from and written to memory.
    pub bytes: u64,
    /// Kernels launched, or calls made.
    pub launches: u32,
    /// Whether the numbers are f16 or bf16. `bytes` are those of as many f32.
    pub narrow: bool,
}

impl std::ops::Add for DeviceWork {
    type Output = DeviceWork;
    fn add(self, other: DeviceWork) -> DeviceWork {
        DeviceWork {
            flops: self.flops.saturating_add(other.flops),
            bytes: self.bytes.saturating_add(other.bytes),
            launches: self.launches.saturating_add(other.launches),
            narrow: self.narrow && other.narrow,
        }
    }
}

/// A compute device as the roofline model describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device's name on the command line and in records.
    pub name: &'static str,
    /// Peak floating-point operations per second: of 16-bit tensor cores, or in f32 for `cpu_core` and names that end in `_f32`.
    pub peak: u64,
    /// The share of the peak that real programs reach, in thousandths: 1 to 1,000.
    pub efficiency: u32,
    /// Rate of the device's memory.
    pub memory: BytesPerSec,
    /// Overhead of each kernel launch.
    pub launch: Picos,
}

/// The overhead of a CUDA kernel launch: kernels of 2.9 us that are launched without waiting for each other take 3.8 us each
/// (NVIDIA developer blog, "Getting Started with CUDA Graphs", 2019).
const CUDA_LAUNCH: Picos = Picos(900_000);

/// The A100 PCIe's memory: 1,935 GB/s (NVIDIA datasheet, 2021).
const A100_PCIE_MEMORY: BytesPerSec = BytesPerSec(1_935_000_000_000);

/// A GPU with a peak of `tflops` TFLOP/s and a memory of `memory` GB/s; its efficiency and launch overhead are the H100's.
const fn gpu(name: &'static str, tflops: f64, memory: u64) -> Device {
    Device {
        name,
        peak: (tflops * 10.0 + 0.5) as u64 * 100_000_000_000,
        memory: BytesPerSec(memory * 1_000_000_000),
        ..Device::H100
    }
}

impl Device {
    /// NVIDIA A100 SXM 80 GB, bf16 on tensor cores: 312 TFLOP/s, 2,039 GB/s (NVIDIA datasheet, 2021). Efficiency:
    /// 163 of 312 TFLOP/s in training (Narayanan et al., "Efficient large-scale language model training on GPU
    /// clusters using Megatron-LM", SC 2021).
    pub const A100: Device = Device {
        name: "a100",
        peak: 312_000_000_000_000,
        efficiency: 520,
        memory: BytesPerSec(2_039_000_000_000),
        launch: CUDA_LAUNCH,
    };
    /// An A100 in f32 without tensor cores: 19.5 TFLOP/s. Efficiency as assumed for [`Device::A100`].
    pub const A100_F32: Device = Device { name: "a100_f32", peak: 19_500_000_000_000, ..Device::A100 };
    /// NVIDIA H100 SXM 80 GB, bf16 on tensor cores, dense: 989.4 TFLOP/s, 3.35 TB/s (NVIDIA datasheet, 2023).
    /// Efficiency: 38 to 43 % in training (Grattafiori et al., "The Llama 3 herd of models", 2024, table 4).
    pub const H100: Device = Device {
        name: "h100",
        peak: 989_400_000_000_000,
        efficiency: 400,
        memory: BytesPerSec(3_350_000_000_000),
        launch: CUDA_LAUNCH,
    };
    /// An H100 in f32 without tensor cores: 67 TFLOP/s. Efficiency as assumed for [`Device::H100`].
    pub const H100_F32: Device = Device { name: "h100_f32", peak: 67_000_000_000_000, ..Device::H100 };
    /// One CPU core with AVX2, f32: two fused multiply-adds of 8 lanes a cycle at 3 GHz, 96 GFLOP/s; half of a
    /// DDR4-3200 channel (25.6 GB/s). The efficiency is an assumption: plain loops, not a tuned library.
    pub const CPU_CORE: Device = Device {
        name: "cpu_core",
        peak: 96_000_000_000,
        efficiency: 250,
        memory: BytesPerSec(12_800_000_000),
        launch: Picos::ZERO,
    };

    /// Every device preset. Rates are those of the vendor's documents, dense, in f16 on tensor cores with f32 sums, or with `_f32`
    /// in f32 without tensor cores: V100 (2018), T4 (2018), A100 80 GB (2021), A10 (2021; the A10G is assumed alike), H100 (2023),
    /// L40S (2023), GH200 of 96 GB (2023), H200 (2024), DGX B200 (2024) and GB200 NVL72 (2024) datasheets; Turing (2018), GA102 (2021),
    /// Ada (2022) and RTX Blackwell (2025) architecture white papers. `a100`, `h100` and `v100` are the SXM modules. Efficiencies
    /// without a published training run are assumed: as for [`Device::A100`] on its PCIe card, as for [`Device::H100`] on all others.
    /// The table of accelerators in `allfold-networks` has the same figures.
    pub const ALL: [Device; 35] = [
        Device::A100,
        Device::A100_F32,
        Device { name: "a100pcie", memory: A100_PCIE_MEMORY, ..Device::A100 },
        Device { name: "a100pcie_f32", memory: A100_PCIE_MEMORY, ..Device::A100_F32 },
        Device::H100,
        Device::H100_F32,
        gpu("h100pcie", 756.0, 2_000),
        gpu("h100pcie_f32", 51.0, 2_000),
        gpu("v100", 125.0, 900),
        gpu("v100_f32", 15.7, 900),
        gpu("v100pcie", 112.0, 900),
        gpu("v100pcie_f32", 14.0, 900),
        gpu("t4", 65.0, 320),
        gpu("t4_f32", 8.1, 320),
        gpu("a10g", 125.0, 600),
        gpu("a10g_f32", 31.2, 600),
        gpu("l40s", 362.0, 864),
        gpu("l40s_f32", 91.6, 864),
        gpu("rtx2080ti", 53.8, 616),
        gpu("rtx2080ti_f32", 13.4, 616),
        gpu("rtx3090", 71.0, 936),
        gpu("rtx3090_f32", 35.6, 936),
        gpu("rtx4090", 165.2, 1_008),
        gpu("rtx4090_f32", 82.6, 1_008),
        gpu("rtx5090", 209.5, 1_792),
        gpu("rtx5090_f32", 104.8, 1_792),
        gpu("h200", 989.4, 4_800),
        gpu("h200_f32", 67.0, 4_800),
        gpu("gh200", 989.4, 4_000),
        gpu("gh200_f32", 67.0, 4_000),
        gpu("b200", 2_250.0, 8_000),
        gpu("b200_f32", 75.0, 8_000),
        gpu("gb200", 2_500.0, 8_000),
        gpu("gb200_f32", 80.0, 8_000),
        Device::CPU_CORE,
    ];

    /// The device preset of this name, written as here or as on the GPU: `rtx3090`, `RTX 3090`, `RTX-3090`, `A100 SXM`,
    /// `A100 PCIe_f32`, `T4 PCIe`. The name alone and the name with `_bf16`, `_f16` or `_amp` mean the tensor cores.
    ///
    /// # Errors
    /// No preset has this name, and the error lists the names; or the GPU is not made in this form factor, and the error names those in
    /// which it is.
    pub fn named(name: &str) -> Result<Device> {
        let flat = name.to_lowercase().replace([' ', '-'], "");
        let (gpu, precision) = flat.strip_suffix("_f32").map_or((&*flat, ""), |gpu| (gpu, "_f32"));
        let narrow = ["_bf16", "_f16", "_amp"].into_iter().find_map(|narrow| flat.strip_suffix(narrow));
        let gpu = narrow.unwrap_or(gpu);
        let plain = FormFactor::plain(gpu).unwrap_or_else(|| gpu.into()) + precision;
        // A core of a CPU has no units for narrow numbers.
        let is_it =
            |device: &Device| device.name == flat || device.name == plain && plain != Device::CPU_CORE.name;
        Device::ALL.into_iter().find(is_it).ok_or_else(|| {
            let names: Vec<&str> = Device::ALL.iter().map(|device| device.name).collect();
            let refused = FormFactor::refuse(gpu, &names);
            Error::Device(refused.unwrap_or_else(|| crate::suggest::unknown("device", name, &names)))
        })
    }

    /// The device with its peak in f16 and bf16; `None` if the device has no units for these types, or is no preset.
    pub fn narrow(&self) -> Option<Device> {
        let name = self.name.strip_suffix("_f32").unwrap_or(self.name);
        Device::ALL
            .into_iter()
            .find(|device| device.name == name)
            .filter(|device| *device != Device::CPU_CORE)
    }

    /// How long `work` takes on this device; saturates at `u64::MAX` picoseconds (213 days).
    pub fn time(&self, work: DeviceWork) -> Picos {
        if work.narrow
            && let Some(device) = self.narrow()
        {
            return device.time(DeviceWork { bytes: work.bytes.div_ceil(2), narrow: false, ..work });
        }
        let picos =
            |amount: u64, rate: u128| (u128::from(amount) * 1_000_000_000_000_000).div_ceil(rate.max(1));
        let compute = picos(work.flops, u128::from(self.peak) * u128::from(self.efficiency));
        let memory = picos(work.bytes, u128::from(self.memory.0) * 1_000);
        let launches = u128::from(self.launch.0) * u128::from(work.launches);
        Picos(u64::try_from(launches + compute.max(memory)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = Device {
        name: "test",
        peak: 1_000_000_000_000,
        efficiency: 500,
        memory: BytesPerSec(1_000_000_000),
        launch: Picos(1_000_000),
    };

    /// Regression: `h100_bf16` was unknown, although `h100` alone means bf16 on tensor cores.
    #[test]
    fn a_narrow_precision_may_be_said() {
        for name in ["h100_bf16", "H100 SXM_f16", "h100_amp", "h100"] {
            assert_eq!(Device::named(name).unwrap(), Device::H100, "{name}");
        }
        assert_eq!(Device::named("h100_f32").unwrap(), Device::H100_F32);
        for name in ["cpu_core_bf16", "h100_bf16_f32", "h100_f64"] {
            assert!(Device::named(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_slower_of_arithmetic_and_memory_decides() {
        // 1 Mflop at half of 1 Tflop/s takes 2 us, 1 kB at 1 GB/s takes 1 us.
        let work = DeviceWork { flops: 1_000_000, bytes: 1_000, launches: 3, narrow: false };
        assert_eq!(DEVICE.time(work), Picos::from_micros(5));
        assert_eq!(DEVICE.time(DeviceWork { bytes: 9_000, ..work }), Picos::from_micros(12));
        assert_eq!(DEVICE.time(DeviceWork::default()), Picos::ZERO);
    }

    #[test]
    fn narrow_numbers_take_half_the_bytes_and_units_of_their_own() {
        let work = DeviceWork { flops: 1 << 40, bytes: 1 << 20, launches: 1, narrow: true };
        let wide = DeviceWork { narrow: false, ..work };
        assert_eq!(Device::A100_F32.time(work), Device::A100.time(wide));
        assert!(Device::A100_F32.time(wide) > Device::A100_F32.time(work));
        let bytes = DeviceWork { flops: 0, launches: 0, ..work };
        assert_eq!(
            Device::H100.time(bytes).0,
            Device::H100.time(DeviceWork { narrow: false, ..bytes }).0.div_ceil(2)
        );
        // A core of a CPU stores and computes f32.
        assert_eq!(Device::CPU_CORE.time(work), Device::CPU_CORE.time(wide));
        assert!(Device::ALL.iter().all(|device| device.narrow().is_some() || *device == Device::CPU_CORE));
    }

    #[test]
    fn part_of_a_picosecond_counts_as_a_whole_one_and_years_do_not_wrap() {
        assert_eq!(Device::H100.time(DeviceWork { flops: 1, ..DeviceWork::default() }), Picos(1));
        assert_eq!(DEVICE.time(DeviceWork { bytes: u64::MAX, ..DeviceWork::default() }), Picos(u64::MAX));
    }

    #[test]
    fn an_unknown_name_is_told_the_nearest() {
        assert_eq!(Device::named("h100"), Ok(Device::H100));
        let error = Device::named("h10").unwrap_err().to_string();
        assert!(error.contains("did you mean `h100`"), "{error}");
    }

    #[test]
    fn a_gpu_is_found_as_its_vendor_writes_it() {
        for (written, name, peak) in [
            ("RTX 2080 Ti", "rtx2080ti", 53_800_000_000_000),
            ("RTX 3090", "rtx3090", 71_000_000_000_000),
            ("rtx-4090", "rtx4090", 165_200_000_000_000),
            ("RTX 5090_f32", "rtx5090_f32", 104_800_000_000_000),
            ("A100 SXM", "a100", 312_000_000_000_000),
            ("H100 SXM_f32", "h100_f32", 67_000_000_000_000),
            ("A100 PCIe_f32", "a100pcie_f32", 19_500_000_000_000),
            ("T4", "t4", 65_000_000_000_000),
            ("T4 PCIe", "t4", 65_000_000_000_000),
            ("RTX 3090 PCIe_f32", "rtx3090_f32", 35_600_000_000_000),
            ("H200 SXM", "h200", 989_400_000_000_000),
        ] {
            let device = Device::named(written).unwrap();
            assert_eq!((device.name, device.peak), (name, peak));
        }
        let halves = Device::ALL
            .iter()
            .filter(|device| Device::ALL.iter().any(|f32| f32.name == format!("{}_f32", device.name)));
        assert_eq!(halves.count(), 17, "every GPU has both precisions");
    }
}
