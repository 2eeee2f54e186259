//! For whom ranks wait: in each step of a run, and on average.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most sums that a run keeps, of all its steps together, each step counting as one more: about 64 MiB. Two ranks reach this
/// number after a million steps, eight that all wait for each other after 70,000.
const MOST_SUMS: usize = 1 << 22;

/// How long a rank waits in operations that another rank has not entered yet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitingFor {
    /// The rank that waits.
    pub rank: u32,
    /// The rank that it waits for.
    pub of: u32,
    /// The time, in microseconds.
    pub us: f64,
}

/// The rank that the others wait for the longest, and the share of their waiting: `rank 2 (63 %)`. `-` if nobody waits for a rank.
pub fn awaited_most(waiting_for: &[WaitingFor], waiting_us: &[f64]) -> String {
    let of = |rank: u32| waiting_for.iter().filter(|pair| pair.of == rank).map(|pair| pair.us).sum::<f64>();
    let ranks = waiting_for.iter().map(|pair| pair.of);
    let all: f64 = waiting_us.iter().sum();
    let share = |rank: &u32| 100.0 * (of(*rank) / all).min(1.0);
    match ranks.max_by(|a, b| of(*a).total_cmp(&of(*b))).filter(|rank| share(rank) >= 0.5) {
        Some(rank) => format!("rank {rank} ({:.0} %)", share(&rank)),
        None => "-".into(),
    }
}

/// How long each rank waits for each other one, by step: a sum for each pair of ranks that waits. A run of more than four million
/// sums keeps those of every second step, then of every fourth and so on, and of the last step. So the memory is bounded, the steps
/// that are kept show the whole course of the run, and their mean is close to that of all steps.
#[derive(Clone, Debug)]
pub struct WaitingByStep {
    most: usize,
    /// The distance of the steps that are kept.
    every: u64,
    /// The number of kept sums plus the number of kept steps.
    sums: usize,
    steps: BTreeMap<u64, Vec<WaitingFor>>,
}

impl Default for WaitingByStep {
    fn default() -> Self {
        WaitingByStep { most: MOST_SUMS, every: 1, sums: 0, steps: BTreeMap::new() }
    }
}

impl WaitingByStep {
    /// Keeps the sums of a step, which is later than all steps before.
    pub fn keep(&mut self, step: u64, sums: Vec<WaitingFor>) {
        if let Some(before) = self.steps.last_entry()
            && !before.key().is_multiple_of(self.every)
        {
            self.sums -= before.remove().len() + 1;
        }
        self.sums += sums.len() + 1;
        self.steps.insert(step, sums);
        while self.sums > self.most && self.steps.len() > 2 {
            self.every *= 2;
            let every = self.every;
            self.steps.retain(|kept, _| kept.is_multiple_of(every) || *kept == step);
            self.sums = self.steps.values().map(|sums| sums.len() + 1).sum();
        }
    }

    /// The sums of a step; `None` if they are not kept.
    pub fn of(&self, step: u64) -> Option<&[WaitingFor]> {
        self.steps.get(&step).map(Vec::as_slice)
    }

    /// The mean of the steps from `first` on. A pair of ranks that waits in some of these steps counts
    /// with 0 in the others.
    pub fn mean(&self, first: u64) -> Vec<WaitingFor> {
        let counted = self.steps.range(first..).count().max(1) as f64;
        let mut sums: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for WaitingFor { rank, of, us } in self.steps.range(first..).flat_map(|(_, sums)| sums) {
            *sums.entry((*rank, *of)).or_default() += us;
        }
        sums.into_iter().map(|((rank, of), us)| WaitingFor { rank, of, us: us / counted }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(of: u32, us: f64) -> WaitingFor {
        WaitingFor { rank: 0, of, us }
    }

    #[test]
    fn a_long_run_keeps_steps_at_even_distances_and_the_last() {
        let mut kept = WaitingByStep { most: 12, ..WaitingByStep::default() };
        for step in 0..100 {
            kept.keep(step, vec![pair(1, 1.0)]);
            assert!(kept.sums == 2 * kept.steps.len() && kept.sums <= 12, "after step {step}: {kept:?}");
            assert!(kept.of(step).is_some(), "the last step is kept");
        }
        assert_eq!(kept.steps.keys().copied().collect::<Vec<_>>(), [0, 32, 64, 96, 99]);
        assert_eq!(kept.mean(1), [pair(1, 1.0)]);
    }

    #[test]
    fn a_pair_that_waits_in_one_of_two_steps_waits_for_half_on_average() {
        let mut kept = WaitingByStep::default();
        assert!(kept.mean(0).is_empty());
        kept.keep(4, vec![pair(1, 900.0)]);
        kept.keep(5, vec![pair(1, 10.0), pair(2, 4.0)]);
        kept.keep(6, vec![pair(1, 20.0)]);
        assert_eq!(kept.mean(5), [pair(1, 15.0), pair(2, 2.0)]);
        assert_eq!((kept.of(3), kept.of(6)), (None, Some(&[pair(1, 20.0)][..])));
    }
}
