//! The key `device`: where each rank computes.
//!
//! | value | device |
//! |---|---|
//! | `"cpu"`, `"cuda"` | of every rank; ranks share the GPUs of their machine in turn |
//! | `"cuda:1"` | of every rank: the GPU with this number on its machine |
//! | `["cuda:0", "cpu"]` or `"cuda:0,cpu"` | of rank 0 and of rank 1 |

use crate::{Config, ElementType, Error, GpuExchange, Result};
use allfold_base::suggest::suggestion;

/// The names of devices.
const DEVICES: &[&str] = &["cpu", "cuda"];

/// Words of other programs for devices, and the names here.
const OTHER_NAMES: [(&str, &str); 3] = [("gpu", "cuda"), ("gpus", "cuda"), ("nvidia", "cuda")];

/// Devices of PyTorch on which nothing is computed here.
const UNSUPPORTED: [&str; 6] = ["mps", "xpu", "hip", "rocm", "tpu", "xla"];

/// The name here of a device that other programs call `name`.
fn of_other_programs(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    OTHER_NAMES.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours)
}

/// Where a rank computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankDevice {
    /// The processors.
    Cpu,
    /// The GPU with this number on the rank's machine; `None`: the ranks of a machine share its GPUs in turn.
    Cuda(Option<usize>),
}

impl RankDevice {
    /// The device with this name.
    ///
    /// # Errors
    /// An unknown name, with the nearest one that is known.
    pub fn named(name: &str) -> Result<RankDevice> {
        match name.split_once(':') {
            None if name == "cpu" => Ok(RankDevice::Cpu),
            None if name == "cuda" => Ok(RankDevice::Cuda(None)),
            Some(("cuda", number)) => match number.parse() {
                Ok(number) => Ok(RankDevice::Cuda(Some(number))),
                Err(_) => Err(Error(format!(
                    "`device` is {name}; after `cuda:` comes the number of a GPU, such as cuda:0"
                ))),
            },
            _ => Err(Error(match of_other_programs(name.split(':').next().unwrap_or_default()) {
                Some(ours) => format!("unknown device `{name}`; here it is `{ours}`"),
                None if UNSUPPORTED.contains(&name.to_lowercase().split(':').next().unwrap_or_default()) => {
                    format!("device `{name}` is not supported; use `cpu`, or `cuda` for GPUs of NVIDIA")
                }
                None => format!("unknown device `{name}`; {}", suggestion(name, DEVICES)),
            })),
        }
    }
}

/// Whether the first of these names, between commas, is that of a real device and not of a model of one. A word of other programs for a
/// real device, such as `gpu`, counts, so that [`RankDevice::named`] refuses it with the name here.
pub fn are_real_devices(names: &str) -> bool {
    let first = names.split([',', ':']).next().unwrap_or_default().trim();
    DEVICES.contains(&first) || UNSUPPORTED.contains(&first) || of_other_programs(first).is_some()
}

impl Config {
    /// The devices of the ranks: one for all of them, or one for each.
    ///
    /// # Errors
    /// A name that is no device's.
    pub fn devices(&self) -> Result<Vec<RankDevice>> {
        self.device.split(',').map(|name| RankDevice::named(name.trim())).collect()
    }

    /// The device of a rank.
    ///
    /// # Errors
    /// A name that no device has; a rank beyond the list.
    pub fn device_of(&self, rank: usize) -> Result<RankDevice> {
        let devices = self.devices()?;
        let one = if devices.len() == 1 { devices.first() } else { devices.get(rank) };
        one.copied().ok_or_else(|| Error(format!("`device` names no device for rank {rank}")))
    }

    /// Whether any rank computes on a GPU.
    pub fn uses_gpus(&self) -> bool {
        self.devices().is_ok_and(|all| all.iter().any(|device| *device != RankDevice::Cpu))
    }

    /// Whether some ranks compute on GPUs and others on the CPU.
    pub fn mixes_devices(&self) -> bool {
        self.uses_gpus() && self.devices().is_ok_and(|all| all.contains(&RankDevice::Cpu))
    }

    /// Checks that `device` has a device for each of `ranks` ranks, and that ranks on the CPU can train together with ranks on GPUs
    /// if there are both.
    ///
    /// # Errors
    /// What does not fit, and what would be right.
    pub fn check_devices(&self, ranks: u32) -> Result<()> {
        let named = self.devices()?.len();
        if named != 1 && named != ranks as usize {
            return Err(Error(format!(
                "`device` names {named} devices and there are {ranks} ranks; name one for each rank, or one for all"
            )));
        }
        if !self.mixes_devices() {
            return Ok(());
        }
        let (dtype, exchange) = (self.precision.dtype, self.exchange);
        let host = matches!(exchange, GpuExchange::Auto | GpuExchange::Host);
        let limits = [
            ("strategy", self.strategy.clone(), "ddp", self.strategy == "ddp"),
            ("precision.dtype", dtype.to_string(), "f32", dtype == ElementType::F32),
            ("exchange", exchange.to_string(), "auto or host", host),
            ("optimiser.name", self.optimiser.name.clone(), "another", self.optimiser.name != "lars"),
            ("ddp.hook", self.ddp.hook.clone(), "another", self.ddp.hook != "local_sgd"),
        ];
        if let Some((key, value, right, _)) = limits.iter().find(|(.., fits)| !fits) {
            return Err(Error(format!(
                "`{key}` is {value}, and some ranks compute on GPUs and others on the CPU, which needs {right}"
            )));
        }
        match (self.channels_last, self.ddp.broadcast_buffers) {
            (false, false) => Ok(()),
            (last, _) => Err(Error(format!(
                "`{}` must be false where some ranks compute on GPUs and others on the CPU",
                if last { "channels_last" } else { "ddp.broadcast_buffers" }
            ))),
        }
    }
}
