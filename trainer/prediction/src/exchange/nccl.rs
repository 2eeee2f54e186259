//! NCCL's collectives: the algorithm and protocol that its tuner chooses on the machine, and the time of that choice.

use super::{ExchangeModel, GroupedCollective, MessageTimes, SimulatedExchange};
use crate::RankGroups;
use allfold_collectives::Rank;
use allfold_nccl_model::physics::{Parameters, Setting, Terms, closed};
use allfold_nccl_model::{Library, Overrides, Platform, TUNED};
use allfold_sim::Picos;
use allfold_sim::machines::{Machine, Nics};
use allfold_trainer::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// NCCL on the machine of all ranks.
#[derive(Clone, Debug)]
pub struct NcclSystem {
    /// The machine, whose GPUs are the ranks in order.
    pub machine: Machine,
    /// The parameters of the fitted model; `None`: times are those that NCCL's own tuner computes, which only rank its candidates.
    pub fitted: Option<Parameters>,
}

/// NCCL's collectives; messages between two ranks, and collectives that NCCL composes of messages, are simulated.
pub struct NcclModel<'a> {
    system: &'a NcclSystem,
    simulated: SimulatedExchange<'a>,
    /// The part of the machine that each of some groups has; `None` where nodes have unlike parts of a group.
    settings: BTreeMap<RankGroups, Option<Setting>>,
    used: BTreeSet<String>,
}

impl<'a> NcclModel<'a> {
    /// NCCL's model of the ranks of `system`; `simulated` times what NCCL composes of messages.
    pub fn new(system: &'a NcclSystem, simulated: SimulatedExchange<'a>) -> NcclModel<'a> {
        NcclModel { system, simulated, settings: BTreeMap::new(), used: BTreeSet::new() }
    }

    /// The time of a call in microseconds; `None` if NCCL's model does not cover it.
    fn timed(&mut self, call: &GroupedCollective) -> Result<Option<f64>> {
        let size = call.among.size();
        if size < 2 || call.count == 0 || !TUNED.contains(&call.collective) {
            return Ok(None);
        }
        if !self.settings.contains_key(call.among) {
            self.settings.insert(call.among.clone(), setting(&self.system.machine, call.among));
        }
        let Some(Some(setting)) = self.settings.get(call.among) else { return Ok(None) };
        let blocks = if call.collective.blocked() { size as usize } else { 1 };
        let bytes = (call.count * blocks * call.dtype.size()) as u64;
        let case = setting.case(call.collective, bytes, false);
        let case = case.map_err(|error| Error::Config(error.to_string()))?;
        let (by, time) = match &self.system.fitted {
            Some(fitted) => ("fitted model", closed(&case, fitted, Terms::default())),
            None => ("tuner", case.tuner_us),
        };
        self.used.insert(format!("NCCL's {by}, {} {}", case.algorithm.name(), case.protocol.name()));
        Ok(Some(time))
    }
}

/// What one group has of a machine while all groups do the same: its GPUs of each node, and its share of their NICs. `None` if nodes have
/// different numbers of the group's GPUs.
fn setting(machine: &Machine, among: &RankGroups) -> Option<Setting> {
    let node = |rank: &Rank| rank.0 / machine.devices.max(1);
    let group = among.groups.first()?;
    let mut parts: BTreeMap<u32, u32> = BTreeMap::new();
    group.iter().for_each(|rank| *parts.entry(node(rank)).or_default() += 1);
    let (first, &devices) = parts.iter().next()?;
    if parts.values().any(|part| *part != devices) {
        return None;
    }
    let is_there = |group: &&Vec<Rank>| group.iter().any(|rank| node(rank) == *first);
    let sharers = among.groups.iter().filter(is_there).count().max(1) as u32;
    let nodes = parts.len() as u32;
    let shared = |nics: Nics| {
        let count = (nics.count / sharers).max(1);
        let each = nics.gbit_per_s * f64::from(nics.count) / f64::from(count * sharers);
        Nics { count, gbit_per_s: each, ..nics }
    };
    let nics = machine.nics.filter(|_| nodes > 1).map(shared);
    let nvlink = machine.nvlink && devices > 1;
    let machine = Machine { devices, nodes, nics, nvlink, ..machine.clone() };
    let platform = Platform::of(&machine, group.len() as u32, Library::default());
    Some(Setting { machine, platform, overrides: Overrides::default(), driven: 1, host_stores: None })
}

impl ExchangeModel for NcclModel<'_> {
    fn collective(&mut self, call: GroupedCollective) -> Result<Picos> {
        match self.timed(&call)? {
            Some(micros) => Ok(Picos((micros * 1e6).ceil() as u64)),
            None => self.simulated.collective(call),
        }
    }

    fn message(&mut self, pairs: &[(Rank, Rank)], ranks: u32, bytes: u64) -> Result<MessageTimes> {
        self.simulated.message(pairs, ranks, bytes)
    }

    fn engines(&self) -> Vec<String> {
        self.used.iter().cloned().chain(self.simulated.engines()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_sim::machines::presets::Preset;

    /// Groups share the NICs of their nodes: eight groups of one GPU of each node have a NIC each, and what is inside nodes has none.
    #[test]
    fn a_group_has_its_part_of_the_machine() {
        let machine = Preset::machine("hgx-h100", 32).unwrap();
        let part = |groups: Vec<Vec<u32>>| {
            let groups = groups.into_iter().map(|group| group.into_iter().map(Rank).collect()).collect();
            setting(&machine, &RankGroups { ranks: 32, groups })
        };
        let all = part(vec![(0..32).collect()]).unwrap();
        assert_eq!((all.machine, all.platform.nodes), (machine.clone(), 4));
        let rails = part((0..8).map(|at| (0..4).map(|node| 8 * node + at).collect()).collect()).unwrap();
        let nics = rails.machine.nics.unwrap();
        assert_eq!(
            (rails.machine.devices, rails.machine.nodes, nics.count, nics.gbit_per_s),
            (1, 4, 1, 400.0)
        );
        let inside = part((0..4).map(|node| (8 * node..8 * node + 8).collect()).collect()).unwrap();
        assert_eq!((inside.machine.devices, inside.machine.nodes, inside.machine.nics), (8, 1, None));
        assert!(part(vec![vec![0, 1, 8]]).is_none(), "nodes have unlike parts of the group");
    }
}
