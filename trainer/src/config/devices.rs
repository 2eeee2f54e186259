//! The key `device`: where each rank computes.
//!
//! | value | device |
//! |---|---|
//! | `"cpu"`, `"cuda"` | of every rank; ranks share the GPUs of their machine in turn |
//! | `"cuda:1"` | of every rank: the GPU with this number on its machine |
//! | `["cuda:0", "cpu"]` or `"cuda:0,cpu"` | of rank 0 and of rank 1 |

use super::{Config, DEVICES};
use crate::unknown::unknown;
use crate::{Error, Result};
use serde::{Deserialize, Deserializer};

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
                Err(_) => Err(Error::Config(format!(
                    "`device` is {name}; after `cuda:` comes the number of a GPU, such as cuda:0"
                ))),
            },
            _ => Err(unknown("device", name, DEVICES.iter().map(|(name, _)| *name))),
        }
    }
}

/// Whether the first of these names, between commas, is that of a real device and not of a model of one.
pub fn are_real_devices(names: &str) -> bool {
    let first = names.split([',', ':']).next().unwrap_or_default().trim();
    DEVICES.iter().any(|(known, _)| *known == first)
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
    /// A name that is no device's; a rank beyond the list.
    pub fn device_of(&self, rank: usize) -> Result<RankDevice> {
        let devices = self.devices()?;
        let one = if devices.len() == 1 { devices.first() } else { devices.get(rank) };
        one.copied().ok_or_else(|| Error::Config(format!("`device` names no device for rank {rank}")))
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
    pub(crate) fn check_devices(&self, ranks: u32) -> Result<()> {
        let named = self.devices()?.len();
        if named != 1 && named != ranks as usize {
            return Err(Error::Config(format!(
                "`device` names {named} devices and there are {ranks} ranks; name one for each rank, or one for all"
            )));
        }
        if !self.mixes_devices() {
            return Ok(());
        }
        let limits = [
            ("strategy", &self.strategy[..], "ddp", self.strategy == "ddp"),
            ("dtype", &self.dtype, "f32", self.dtype == "f32"),
            ("exchange", &self.exchange, "auto or host", ["auto", "host"].contains(&self.exchange.as_str())),
            ("optimiser", &self.optimiser, "another", self.optimiser != "lars"),
            ("hook", &self.hook, "another", self.hook != "local_sgd"),
        ];
        if let Some((key, value, right, _)) = limits.iter().find(|(.., fits)| !fits) {
            return Err(Error::Config(format!(
                "`{key}` is {value}, and some ranks compute on GPUs and others on the CPU, which needs {right}"
            )));
        }
        match (self.channels_last, self.broadcast_buffers) {
            (false, false) => Ok(()),
            (last, _) => Err(Error::Config(format!(
                "`{}` must be false where some ranks compute on GPUs and others on the CPU",
                if last { "channels_last" } else { "broadcast_buffers" }
            ))),
        }
    }
}

/// Reads one device or a list of devices; a list is kept with commas between its names.
pub(super) fn one_or_each<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a device, such as \"cpu\", or a list with one for each rank")]
    enum OneOrEach {
        One(String),
        Each(Vec<String>),
    }
    Ok(match OneOrEach::deserialize(from)? {
        OneOrEach::One(name) => name,
        OneOrEach::Each(names) => names.join(","),
    })
}
