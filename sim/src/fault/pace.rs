//! How long a rank takes over what it does itself: factors, pauses, jitter and devices.

use super::factor::MILLION;
use super::noise::Draw;
use super::{Factor, Faults, Ranks, Rule, When};
use crate::device::{Device, DeviceWork};
use crate::{Costs, Picos, Rank};

impl Faults {
    /// How much slower a rank is by the rules that always hold.
    pub fn slowness(&self, rank: Rank) -> Factor {
        self.rules().iter().fold(Factor::ONE, |slowness, rule| match rule {
            Rule::SlowRank { ranks, factor, when: When::ALWAYS } if ranks.has(rank) => slowness.and(*factor),
            _ => slowness,
        })
    }

    /// The costs of messages, launches and reductions on this rank by the rules that hold all the time. The overhead of a
    /// message is its sender's. [`Faults::takes`] adds what the other rules cost.
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

    /// How long work takes on this rank by the rules that always hold, on its own device where it has another than this.
    pub fn compute(&self, rank: Rank, device: &Device, work: DeviceWork) -> Picos {
        self.slowness(rank).of(self.device(rank, device).time(work))
    }

    /// The device of this rank, if the other ranks compute on `device`.
    pub fn device<'a>(&'a self, rank: Rank, device: &'a Device) -> &'a Device {
        self.rules().iter().fold(device, |device, rule| match rule {
            Rule::Device { ranks, device: other } if ranks.has(rank) => other,
            _ => device,
        })
    }

    /// How long it takes on the clock to do what needs `span` of the rank's own time, from `start` on: rules with a time
    /// slow it down while they hold, and a rank that is stopped does nothing. `Picos(u64::MAX)` where it never ends.
    pub fn takes(&self, rank: Rank, start: Picos, span: Picos) -> Picos {
        let paced = self.rules().iter().any(|rule| pace(rule, rank).is_some());
        if !paced || span == Picos::ZERO {
            return span;
        }
        let million = u128::from(MILLION);
        // In picoseconds of the rank's own time x 1e6.
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

    /// The random extra time of a rank's n-th launch or computation, which begins at `at`.
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
    /// The launch of an operation, by its number.
    Launch = 100,
    /// A computation, by its number on this rank.
    Compute = 101,
}

/// When and by how much a rule slows a rank down; `None` inside: it stands still.
fn pace(rule: &Rule, rank: Rank) -> Option<(When, Option<Factor>)> {
    let of = |ranks: &Ranks, factor| ranks.has(rank).then_some(factor);
    match rule {
        Rule::SlowRank { ranks, factor, when } if *when != When::ALWAYS => of(ranks, (*when, Some(*factor))),
        Rule::StopRank { ranks, when } => of(ranks, (*when, None)),
        _ => None,
    }
}
