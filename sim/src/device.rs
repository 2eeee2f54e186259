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

use crate::machines::{GpuModel, GpuRates};
use crate::{BytesPerSec, Error, Picos, Result, suggest};

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
    /// Peak in f16 and bf16; `None` if the device has no units for these types.
    pub narrow: Option<u64>,
    /// Bytes of the device's own memory; `None` for a core of a CPU, which shares the memory of its machine.
    pub capacity: Option<u64>,
}

/// An A100 in f32, the device of simulated ranks for which a program names none.
impl Default for Device {
    fn default() -> Device {
        GpuRates::find("A100 SXM").map_or(Device::CPU_CORE, Device::in_f32)
    }
}

impl Device {
    /// One CPU core with AVX2, f32: two fused multiply-adds of 8 lanes a cycle at 3 GHz, 96 GFLOP/s; half of a
    /// DDR4-3200 channel (25.6 GB/s). The efficiency is an assumption: plain loops, not a tuned library.
    pub const CPU_CORE: Device = Device {
        name: "cpu_core",
        peak: 96_000_000_000,
        efficiency: 250,
        memory: BytesPerSec(12_800_000_000),
        launch: Picos::ZERO,
        narrow: None,
        capacity: None,
    };

    /// A GPU on its tensor cores in f16 or bf16.
    pub fn on_tensor_cores(gpu: &'static GpuRates) -> Device {
        // Peaks are multiples of 100 GFLOP/s.
        let peak = |tflops: f64| (tflops * 10.0).round() as u64 * 100_000_000_000;
        Device {
            name: &gpu.devices[0],
            peak: peak(gpu.f16),
            efficiency: (gpu.efficiency * 1000.0).round() as u32,
            memory: gpu.memory.bytes(),
            launch: gpu.launch.picos(),
            narrow: Some(peak(gpu.f16)),
            capacity: Some(gpu.capacity_bytes()),
        }
    }

    /// A GPU in f32 without tensor cores.
    pub fn in_f32(gpu: &'static GpuRates) -> Device {
        let peak = (gpu.f32 * 10.0).round() as u64 * 100_000_000_000;
        Device { name: &gpu.devices[1], peak, ..Device::on_tensor_cores(gpu) }
    }

    /// Every device: each GPU of the table of GPUs on tensor cores and, with the ending `_f32`, in f32; and a core of a CPU.
    pub fn all() -> impl Iterator<Item = Device> {
        let of_gpu = |gpu| [Device::on_tensor_cores(gpu), Device::in_f32(gpu)];
        GpuRates::all().flat_map(of_gpu).chain([Device::CPU_CORE])
    }

    /// The device of this name, written as here or as on the GPU: `rtx3090`, `RTX 3090`, `RTX-3090`, `A100 SXM`, `A100 PCIe_f32`,
    /// `T4 PCIe`, or the name of a user's own GPU. The name alone and the name with `_bf16`, `_f16` or `_amp` mean the tensor cores.
    ///
    /// # Errors
    /// No device has this name, and the error lists the names; or the GPU is not made in this form factor, and the error names those in
    /// which it is.
    pub fn named(name: &str) -> Result<Device> {
        let lower = name.to_lowercase();
        let narrow = ["_bf16", "_f16", "_amp"].into_iter().find_map(|narrow| lower.strip_suffix(narrow));
        let (gpu, of) = match lower.strip_suffix("_f32") {
            _ if lower == Device::CPU_CORE.name => return Ok(Device::CPU_CORE),
            Some(gpu) => (gpu, Device::in_f32 as fn(_) -> _),
            None => (narrow.unwrap_or(&lower), Device::on_tensor_cores as fn(_) -> _),
        };
        GpuRates::find(gpu).map(of).ok_or_else(|| {
            let names: Vec<&str> = Device::all().map(|device| device.name).collect();
            let refused = GpuModel::refuse(gpu, &names);
            Error::Device(refused.unwrap_or_else(|| suggest::unknown("device", name, &names)))
        })
    }

    /// How long `work` takes on this device; saturates at `u64::MAX` picoseconds (213 days).
    pub fn time(&self, work: DeviceWork) -> Picos {
        let (peak, bytes) = match self.narrow.filter(|_| work.narrow) {
            Some(peak) => (peak, work.bytes.div_ceil(2)),
            None => (self.peak, work.bytes),
        };
        let picos =
            |amount: u64, rate: u128| (u128::from(amount) * 1_000_000_000_000_000).div_ceil(rate.max(1));
        let compute = picos(work.flops, u128::from(peak) * u128::from(self.efficiency));
        let memory = picos(bytes, u128::from(self.memory.0) * 1_000);
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
        narrow: None,
        capacity: None,
    };

    fn device(name: &str) -> Device {
        Device::named(name).unwrap()
    }

    /// Regression: `h100_bf16` was unknown, although `h100` alone means bf16 on tensor cores.
    #[test]
    fn a_narrow_precision_may_be_said() {
        for name in ["h100_bf16", "H100 SXM_f16", "h100_amp", "h100"] {
            assert_eq!(device(name), device("h100"), "{name}");
        }
        assert_eq!((device("h100_f32").peak, device("h100_f32").name), (67_000_000_000_000, "h100_f32"));
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
        assert_eq!(Device::default().time(work), device("a100").time(wide));
        assert!(Device::default().time(wide) > Device::default().time(work));
        let bytes = DeviceWork { flops: 0, launches: 0, ..work };
        assert_eq!(
            device("h100").time(bytes).0,
            device("h100").time(DeviceWork { narrow: false, ..bytes }).0.div_ceil(2)
        );
        // A core of a CPU stores and computes f32.
        assert_eq!(Device::CPU_CORE.time(work), Device::CPU_CORE.time(wide));
    }

    #[test]
    fn part_of_a_picosecond_counts_as_a_whole_one_and_years_do_not_wrap() {
        assert_eq!(device("h100").time(DeviceWork { flops: 1, ..DeviceWork::default() }), Picos(1));
        assert_eq!(DEVICE.time(DeviceWork { bytes: u64::MAX, ..DeviceWork::default() }), Picos(u64::MAX));
    }

    #[test]
    fn an_unknown_name_is_told_the_nearest() {
        assert_eq!(device("h100").name, "h100");
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
    }

    /// Adding a GPU changes no other GPU: TFLOP/s on tensor cores and in f32, GB/s, thousandths of the peak, GB.
    #[test]
    fn devices_keep_their_figures() {
        for (name, narrow, wide, memory, efficiency, capacity) in [
            ("v100", 125.0, 15.7, 900, 400, 32),
            ("v100pcie", 112.0, 14.0, 900, 400, 32),
            ("t4", 65.0, 8.1, 320, 400, 16),
            ("a100", 312.0, 19.5, 2_039, 520, 80),
            ("a100pcie", 312.0, 19.5, 1_935, 520, 80),
            ("a10g", 125.0, 31.2, 600, 400, 24),
            ("h100", 989.4, 67.0, 3_350, 400, 80),
            ("h100pcie", 756.0, 51.0, 2_000, 400, 80),
            ("l40s", 362.0, 91.6, 864, 400, 48),
            ("rtx2080ti", 53.8, 13.4, 616, 400, 11),
            ("rtx3090", 71.0, 35.6, 936, 400, 24),
            ("rtx4090", 165.2, 82.6, 1_008, 400, 24),
            ("rtx5090", 209.5, 104.8, 1_792, 400, 32),
            ("h200", 989.4, 67.0, 4_800, 400, 141),
            ("gh200", 989.4, 67.0, 4_000, 400, 96),
            ("b200", 2_250.0, 75.0, 8_000, 400, 180),
            ("gb200", 2_500.0, 80.0, 8_000, 400, 186),
        ] {
            let peak = |tflops: f64| (tflops * 10.0 + 0.5) as u64 * 100_000_000_000;
            let want = Device {
                name,
                peak: peak(narrow),
                efficiency,
                memory: BytesPerSec(memory * 1_000_000_000),
                launch: Picos(900_000),
                narrow: Some(peak(narrow)),
                capacity: Some(capacity * 1_000_000_000),
            };
            assert_eq!(device(name), want);
            let f32 = device(&format!("{name}_f32"));
            assert_eq!(f32, Device { name: f32.name, peak: peak(wide), ..want });
            assert_eq!(f32.name, format!("{name}_f32"));
        }
    }
}
