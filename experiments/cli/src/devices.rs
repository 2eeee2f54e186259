//! `--device` on virtual time: a device model for all ranks, and others for some of them.

use crate::error::{CommandError, CommandResult};
use allfold_sim::catalogue::gpu_of;
use allfold_sim::{Device, Faults, Topology};
use std::fmt;
use std::str::FromStr;

/// The device models of simulated ranks, such as `a100_f32` or `cpu_core,4-7:h100_f32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankDevices {
    /// The device of all ranks that are not in `others`.
    pub device: Device,
    /// The first and the last rank of each range, and their device. If two ranges contain a rank, the later range counts.
    others: Vec<(u32, u32, Device)>,
}

impl From<Device> for RankDevices {
    fn from(device: Device) -> RankDevices {
        RankDevices { device, others: Vec::new() }
    }
}

impl FromStr for RankDevices {
    type Err = CommandError;

    fn from_str(text: &str) -> CommandResult<RankDevices> {
        let device = |name: &str| Device::named(name.trim()).map_err(CommandError::usage);
        let (first, rest) = text.split_once(',').map_or((text, None), |(first, rest)| (first, Some(rest)));
        if first.contains(':') {
            return Err(CommandError::usage(format!(
                "--device {text} begins with the device of some ranks: name first the device of the others, such as a100_f32,{text}"
            )));
        }
        let mut devices = RankDevices::from(device(first)?);
        for rule in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let ranges = rule.split_once(':').map(|(ranks, name)| {
                let (first, last) = ranks.split_once('-').unwrap_or((ranks, ranks));
                (first.trim().parse(), last.trim().parse(), name)
            });
            match ranges {
                Some((Ok(first), Ok(last), name)) if first <= last => {
                    devices.others.push((first, last, device(name)?));
                }
                _ => {
                    return Err(CommandError::usage(format!(
                        "--device {text}: `{rule}` is no RANK:DEVICE or FIRST-LAST:DEVICE, such as 4-7:h100"
                    )));
                }
            }
        }
        Ok(devices)
    }
}

impl fmt::Display for RankDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.device.name)?;
        self.others.iter().try_for_each(|(first, last, device)| match first == last {
            true => write!(f, ",{first}:{}", device.name),
            false => write!(f, ",{first}-{last}:{}", device.name),
        })
    }
}

impl RankDevices {
    /// The devices that a user names; if none are named, the GPU of the topology in f32, or an A100 in f32 where it has no known GPU.
    ///
    /// # Errors
    /// An unknown device.
    pub fn of(named: Option<&str>, topology: &str) -> CommandResult<RankDevices> {
        // Also makes the GPU of a topology file known by its name.
        let own = gpu_of(topology);
        named.map_or_else(|| Ok(own.map_or_else(Device::default, Device::in_f32).into()), str::parse)
    }

    /// Refuses a device for a rank that does not exist.
    ///
    /// # Errors
    /// A range has a rank of `ranks` or more.
    pub fn check(&self, ranks: u32) -> CommandResult {
        match self.others.iter().find(|(_, last, _)| *last >= ranks) {
            None => Ok(()),
            Some((_, last, _)) => Err(CommandError::usage(format!(
                "--device {self} has a device for rank {last}, and there are {ranks} ranks, from 0 to {}",
                ranks.saturating_sub(1)
            ))),
        }
    }

    /// The first device whose name alone means f16 on tensor cores.
    pub fn tensor_cores(&self) -> Option<&'static str> {
        let all = std::iter::once(&self.device).chain(self.others.iter().map(|(_, _, device)| device));
        all.map(|device| device.name).find(|name| !name.ends_with("_f32") && *name != Device::CPU_CORE.name)
    }

    /// These devices in words, where products are rounded to f16 or bf16 (`amp`): those run on tensor cores, whatever the name's ending.
    pub fn described(&self, amp: bool) -> String {
        let ends = |device: &Device| device.name.ends_with("_f32");
        let tensor = amp && (ends(&self.device) || self.others.iter().any(|(.., device)| ends(device)));
        format!("{self}{}", if tensor { ", what amp rounds on its tensor cores" } else { "" })
    }

    /// Bytes of the smallest memory among the devices of this many ranks; `None` if the memory of one is not known.
    pub fn least_memory(&self, ranks: u32) -> Option<u64> {
        let device_of = |rank: u32| {
            let other = self.others.iter().rev().find(|(first, last, _)| (*first..=*last).contains(&rank));
            other.map_or(&self.device, |(_, _, device)| device)
        };
        // Without others every rank has the device of the first one.
        let different = if self.others.is_empty() { 1 } else { ranks.max(1) };
        (0..different).try_fold(u64::MAX, |least, rank| Some(least.min(device_of(rank).capacity?)))
    }

    /// The rules of `others` for this many ranks, as a fault rule writes them.
    fn rules(&self, ranks: u32) -> Vec<String> {
        let there = self.others.iter().filter(|(first, ..)| *first < ranks);
        there
            .map(|(first, last, device)| format!("device={first}-{}:{}", last.min(&(ranks - 1)), device.name))
            .collect()
    }

    /// These devices on a machine, with more rules.
    ///
    /// # Errors
    /// A rule that is invalid, or names a rank or link that the machine does not have.
    pub fn with(&self, rules: &[String], topology: &Topology) -> CommandResult<Faults> {
        let own = self.rules(topology.ranks());
        let all = own.iter().chain(rules).map(String::as_str);
        Faults::parse(all, topology).map_err(CommandError::usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_sim::Rank;

    #[test]
    fn ranks_of_a_machine_have_its_gpu_where_none_is_named() {
        let cases = [
            ("hgx-h100:4,nics=4", "h100_f32"),
            ("dgx1-v100", "v100_f32"),
            ("dgx-a100", "a100_f32"),
            ("nodes8", "a100_f32"),
            ("mine.toml", "a100_f32"),
        ];
        for (topology, device) in cases {
            assert_eq!(RankDevices::of(None, topology).unwrap().to_string(), device, "{topology}");
        }
    }

    #[test]
    fn ranks_have_the_devices_that_rules_name() {
        let text = "cpu_core,4-7:h100,6:rtx3090";
        let devices: RankDevices = "cpu_core, 4-7:H100 ,6:RTX-3090".parse().unwrap();
        assert_eq!((devices.to_string(), text.parse().unwrap()), (text.to_string(), devices.clone()));
        for ranks in [2, 5, 8] {
            let topology = Topology::named("switch", ranks).unwrap();
            let faults = devices.with(&["slow_rank=0:x2".into()], &topology).unwrap();
            let names = (0..ranks).map(|rank| faults.device(Rank(rank), &devices.device).name);
            let want = ["cpu_core", "cpu_core", "cpu_core", "cpu_core", "h100", "h100", "rtx3090", "h100"];
            assert_eq!(names.collect::<Vec<_>>(), want[..ranks as usize]);
        }
        assert_eq!(devices.check(8), Ok(()));
    }

    #[test]
    fn the_smallest_device_says_what_fits() {
        let least = |text: &str, ranks| text.parse::<RankDevices>().unwrap().least_memory(ranks);
        assert_eq!(least("h200_f32", 1_000_000), Some(141_000_000_000));
        assert_eq!(least("h200,2-3:a10g,3:t4", 4), Some(16_000_000_000));
        assert_eq!(least("h200,2-3:a10g,3:t4", 2), Some(141_000_000_000));
        assert_eq!(least("cpu_core", 4), None);
        assert_eq!(least("h200,1:cpu_core", 4), None);
    }

    #[test]
    fn a_gpu_s_name_alone_means_tensor_cores() {
        let cases = [("h100", Some("h100")), ("a100_f32,1:t4", Some("t4")), ("cpu_core,1:t4_f32", None)];
        for (text, name) in cases {
            assert_eq!(text.parse::<RankDevices>().unwrap().tensor_cores(), name, "{text}");
        }
    }

    #[test]
    fn devices_that_make_no_sense_are_told() {
        let told = |text: &str| match text.parse::<RankDevices>() {
            Ok(devices) => devices.check(4).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(told("h10").contains("did you mean `h100`"));
        assert!(told("0-3:h100").contains("such as a100_f32,0-3:h100"));
        for wrong in
            ["h100,a100", "h100,a:h100", "h100,3-1:h100", "h100,:h100", "h100,", "h100,4294967296:h100"]
        {
            assert!(told(wrong).contains("FIRST-LAST:DEVICE"), "{wrong}");
        }
        assert!(told("h100,4-7:a100").contains("a device for rank 7, and there are 4 ranks"));
    }
}
