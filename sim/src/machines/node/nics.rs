//! The NICs that serve each device: the nearest ones; a device uses several if the node has more NICs than devices.
//!
//! ```text
//! 2 devices, 1 NIC     both share it
//! 2 devices, 8 NICs    four each, taken as one link of four times the speed
//! ```

use super::paths::DirectedLink;
use super::{Nic, Node};

/// The path from a device to the network.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Exit {
    /// The numbers of the device's NICs; devices with equal lists share them.
    pub nics: Vec<u32>,
    /// The path from the device to the place of the first NIC of the list.
    pub path: Vec<DirectedLink>,
    /// Bandwidth of all NICs of the list together, in GB/s.
    pub gb_per_s: f64,
}

impl Node {
    /// The NICs that the first `devices` devices use: all of them if all devices are used, or if the paths are not known.
    pub(crate) fn nics_of(&self, devices: u32) -> Vec<&Nic> {
        let exits = self.exits();
        let mine = exits.iter().take(devices as usize).flatten().flat_map(|exit| &exit.nics);
        let mine: Vec<u32> = mine.copied().collect();
        let all = devices >= self.devices || mine.is_empty();
        let used = (0u32..).zip(&self.nics).filter(|(number, _)| all || mine.contains(number));
        used.map(|(_, nic)| nic).collect()
    }

    /// The exit of every device; `None` for a device that reaches no NIC.
    pub(super) fn exits(&self) -> Vec<Option<Exit>> {
        let paths: Vec<_> = (0..self.devices).map(|device| self.paths(device, true)).collect();
        let length = |device: usize, nic: u32| -> Option<usize> {
            let place = self.nics[nic as usize].place as usize;
            paths[device].get(place)?.as_ref().map(Vec::len)
        };
        // The nearest NICs of each device.
        let nearest: Vec<Vec<u32>> = (0..self.devices as usize)
            .map(|device| {
                let all = (0..self.nics.len() as u32).filter_map(|nic| Some((length(device, nic)?, nic)));
                let all: Vec<(usize, u32)> = all.collect();
                let least = all.iter().map(|(far, _)| *far).min();
                all.into_iter().filter(|(far, _)| Some(*far) == least).map(|(_, nic)| nic).collect()
            })
            .collect();
        (0..self.devices as usize)
            .map(|device| {
                let mine = &nearest[device];
                let sharing: Vec<usize> =
                    (0..nearest.len()).filter(|other| nearest[*other] == *mine).collect();
                let place = sharing.iter().position(|other| *other == device)?;
                let nics = share(mine, sharing.len(), place);
                let first = self.nics.get(*nics.first()? as usize)?;
                let speed = |nic: &u32| {
                    let nic = &self.nics[*nic as usize];
                    (nic.gbit_per_s / 8.0).min(nic.gb_per_s)
                };
                let gb_per_s = nics.iter().map(speed).sum();
                Some(Exit { path: paths[device].get(first.place as usize)?.clone()?, gb_per_s, nics })
            })
            .collect()
    }
}

/// The part of `nics` that the device number `place` of `sharing` devices gets.
fn share(nics: &[u32], sharing: usize, place: usize) -> Vec<u32> {
    let each = nics.len() / sharing.max(1);
    match each {
        0 => nics.get(place * nics.len() / sharing.max(1)).copied().into_iter().collect(),
        each => nics[place * each..(place + 1) * each].to_vec(),
    }
}
