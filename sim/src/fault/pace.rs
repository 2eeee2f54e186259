//! How long a rank's own work takes under fault rules: slowdown factors, pauses, jitter and other devices.

use super::factor::MILLION;
use super::noise::Draw;
use super::{Factor, Faults, Ranks, Rule, When};
use crate::device::{Device, DeviceWork};
use crate::{Costs, Picos, Rank};

impl Faults {
    /// The factor by which a rank is slower under the rules that hold during the whole run.
    pub fn slowness(&self, rank: Rank) -> Factor {
        self.rules().iter().fold(Factor::ONE, |slowness, rule| match rule {
            Rule::SlowRank { ranks, factor, when: When::ALWAYS } if ranks.has(rank) => slowness.and(*factor),
            _ => slowness,
        })
    }

    /// The costs of messages, launches and reductions on this rank under the rules that hold during the whole run. A message's
    /// overhead is its sender's. [`Faults::takes`] adds the effect of the other rules.
    pub fn costs(&self, rank: Rank, costs: &Costs) -> Costs {
        match self.slowness(rank) {
            Factor::ONE => *costs,
            slow => Costs {
                overhead: slow.of(costs.overhead),
                launch: slow.of(costs.launch),
                memory: costs.memory.map(|memory| slow.lowers(memory)),
                ..*costs
            },
        }
    }

    /// How long `work` takes on this rank under the rules that hold during the whole run, on `device` unless a rule gives the rank
    /// another device.
    pub fn compute(&self, rank: Rank, device: &Device, work: DeviceWork) -> Picos {
        self.slowness(rank).of(self.device(rank, device).time(work))
    }

    /// The device of this rank: `device`, unless a rule gives the rank another one.
    pub fn device<'a>(&'a self, rank: Rank, device: &'a Device) -> &'a Device {
        self.rules().iter().fold(device, |device, rule| match rule {
            Rule::Device { ranks, device: other } if ranks.has(rank) => other,
            _ => device,
        })
    }

    /// How long `span` of the rank's own work takes in virtual time if it begins at `start`: rules with a time slow the rank down
    /// while they hold, and a stopped rank does no work. `Picos(u64::MAX)` if the work never ends.
    pub fn takes(&self, rank: Rank, start: Picos, span: Picos) -> Picos {
        let paced = self.rules().iter().any(|rule| pace(rule, rank).is_some());
        if !paced || span == Picos::ZERO {
            return span;
        }
        let million = u128::from(MILLION);
        // The work left, in millionths of a picosecond at the rank's full speed.
        let (mut now, mut left) = (start, u128::from(span.0) * million);
        loop {
            let rules = || self.rules().iter().filter_map(|rule| pace(rule, rank));
            let mut holding = rules().filter(|(when, _)| when.holds(now));
            let factor = holding.try_fold(Factor::ONE, |all, (_, one)| Some(all.and(one?)));
            let until = rules().filter_map(|(when, _)| when.changes(now)).min();
            let needed =
                factor.map(|factor| (left * u128::from(factor.millionths())).div_ceil(million * million));
            match (needed, until) {
                (Some(needed), Some(until)) if needed > u128::from(until.0 - now.0) => {
                    let factor = factor.map_or(1, |factor| u128::from(factor.millionths()));
                    left -= (u128::from(until.0 - now.0) * million * million / factor).min(left);
                    now = until;
                }
                (Some(needed), _) => {
                    let end = u128::from(now.0) + needed;
                    return Picos(u64::try_from(end - u128::from(start.0)).unwrap_or(u64::MAX));
                }
                (None, Some(until)) => now = until,
                (None, None) => return Picos(u64::MAX),
            }
        }
    }

    /// The random extra time of a rank's launch or computation number `nth`, which begins at `at`.
    pub fn jitter(&self, rank: Rank, what: Paced, nth: u64, at: Picos) -> Picos {
        (0u64..).zip(self.rules()).fold(Picos::ZERO, |sum, (number, rule)| match rule {
            Rule::JitterRank { ranks, noise, when } if ranks.has(rank) && when.holds(at) => {
                sum + noise.at(Draw::of(self.seed(), &[number, what as u64, rank.0.into(), nth]))
            }
            _ => sum,
        })
    }
}

/// The activities of a rank that jitter applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paced {
    /// The launch of a collective, numbered by operation.
    Launch = 100,
    /// A computation, numbered in the order of the rank's computations.
    Compute = 101,
}

/// When `rule` slows `rank` down and by which factor; the factor is `None` where the rank is stopped.
fn pace(rule: &Rule, rank: Rank) -> Option<(When, Option<Factor>)> {
    let of = |ranks: &Ranks, factor| ranks.has(rank).then_some(factor);
    match rule {
        Rule::SlowRank { ranks, factor, when } if *when != When::ALWAYS => of(ranks, (*when, Some(*factor))),
        Rule::StopRank { ranks, when } => of(ranks, (*when, None)),
        _ => None,
    }
}
