//! What fault rules do to links over time: slow and flapping links, and the *gates* that partitions close.
//!
//! ```text
//! links of the topology   0 1 2 ... L-1 | L L+1 ..   gates: one for every rule that separates ranks, with unlimited
//!                                                    bandwidth while the gate is open and none while it is closed
//! ```
//!
//! A flow that crosses a closed gate or a link that is down makes no progress until the gate opens or the link is up again, like a
//! connection whose packets are retransmitted until they arrive.

use super::{Faults, Rule, When, links_of};
use crate::{BytesPerSec, Link, LinkId, Picos, Rank};

/// The greatest common period of flapping links that [`Faults::settled`] uses, in multiples of the longest period. A greater common
/// period is replaced by this one.
const COMMON: u64 = 1024;

impl Faults {
    /// A link's bandwidth and latency under the rules that hold during the whole run.
    pub fn link(&self, id: LinkId, link: Link) -> Link {
        self.on_link(id).fold(link, |link, rule| match rule {
            Rule::SlowLink { factor, latency, when: When::ALWAYS, .. } => {
                Link { bandwidth: factor.lowers(link.bandwidth), latency: link.latency + *latency }
            }
            _ => link,
        })
    }

    /// The bandwidth of a link at time `at`, from its `steady` bandwidth as given by [`Faults::link`]; zero while the link is down.
    pub fn bandwidth(&self, id: LinkId, steady: BytesPerSec, at: Picos) -> BytesPerSec {
        self.on_link(id).fold(steady, |rate, rule| match rule {
            Rule::SlowLink { factor, when, .. } if rate.0 > 0 && *when != When::ALWAYS && when.holds(at) => {
                factor.lowers(rate)
            }
            Rule::Flap { down, period, when, .. } if when.holds(at) && is_down(*down, *period, *when, at) => {
                BytesPerSec(0)
            }
            _ => rate,
        })
    }

    /// The extra latency of link `id` for a message: from slow-link rules with a time that hold when the message starts, and from
    /// jitter.
    pub fn lateness(&self, id: LinkId, message: &super::Message) -> Picos {
        let rules = (0u64..).zip(&self.rules).zip(&self.links).filter(|(_, links)| links.has(id));
        rules.fold(Picos::ZERO, |late, ((number, rule), _)| match rule {
            Rule::SlowLink { latency, when, .. } if *when != When::ALWAYS && when.holds(message.at) => {
                late + *latency
            }
            Rule::JitterLink { noise, when, .. } if when.holds(message.at) => {
                late + noise.at(self.draw(number, 3 + u64::from(id.0), message))
            }
            _ => late,
        })
    }

    /// The links whose bandwidth changes during a run.
    pub fn changing(&self) -> Vec<LinkId> {
        let changes = |rule: &Rule| match rule {
            Rule::SlowLink { when, factor, .. } => *when != When::ALWAYS && *factor != super::Factor::ONE,
            Rule::Flap { .. } => true,
            _ => false,
        };
        let of = self.rules.iter().zip(&self.links).filter(|(rule, _)| changes(rule));
        let mut links: Vec<LinkId> = of.flat_map(|(_, links)| links.all()).collect();
        links.sort();
        links.dedup();
        links
    }

    /// The rules on links of which none is in use: rules without an effect.
    pub fn idle(&self, in_use: impl Fn(LinkId) -> bool) -> Vec<&Rule> {
        let of = self.rules.iter().zip(&self.links);
        of.filter(|(rule, links)| links_of(rule).is_some() && !links.all().any(&in_use))
            .map(|(rule, _)| rule)
            .collect()
    }

    /// The number of gates: one for every rule that separates ranks.
    pub fn gates(&self) -> u32 {
        self.rules.iter().filter(|rule| gate(rule).is_some()).count() as u32
    }

    /// The numbers of the gates that a flow from one rank to another crosses.
    pub fn gates_between(&self, from: Rank, to: Rank) -> impl Iterator<Item = u32> {
        let gates = self.rules.iter().filter(|rule| gate(rule).is_some());
        (0..).zip(gates).filter(move |(_, rule)| parts(rule, from, to)).map(|(number, _)| number)
    }

    /// Whether a gate is open at time `at`.
    pub fn is_open(&self, number: u32, at: Picos) -> bool {
        let mut gates = self.rules.iter().filter_map(gate);
        gates.nth(number as usize).is_none_or(|when| !when.holds(at))
    }

    /// Whether nothing passes from one rank to another at time `at`: because of a partition, a cut or a stopped rank.
    pub fn is_partitioned(&self, from: Rank, to: Rank, at: Picos) -> bool {
        self.gates_between(from, to).any(|gate| !self.is_open(gate, at))
    }

    /// The next time after `at` at which a bandwidth or a gate changes; `None` if there is none.
    pub fn change(&self, at: Picos) -> Option<Picos> {
        let next = |rule: &Rule| match rule {
            Rule::SlowLink { when, .. } => when.changes(at),
            Rule::Flap { down, period, when, .. } => flip(*down, *period, *when, at),
            other => gate(other).and_then(|when| when.changes(at)),
        };
        self.rules.iter().filter_map(next).min()
    }

    /// The time by which a flow that has made no progress since `since` moves, if it ever moves and no other event happens: every
    /// rule with an end has ended, every other rule has begun, and then two common periods of the flapping links have passed. A
    /// common period of more than 1,024 times the longest period counts as that long.
    pub fn settled(&self, since: Picos) -> Picos {
        let edge = |when: When| if when.until.0 < u64::MAX { when.until } else { when.from };
        let whens = self.rules.iter().map(|rule| match rule {
            Rule::SlowLink { when, .. } | Rule::Flap { when, .. } => *when,
            other => gate(other).unwrap_or(When::ALWAYS),
        });
        let last = whens.map(edge).fold(since, Picos::later);
        let periods = || {
            self.rules.iter().filter_map(|rule| match rule {
                Rule::Flap { period, .. } => Some(period.0),
                _ => None,
            })
        };
        let longest = periods().max().unwrap_or(0);
        let common = periods().reduce(common_multiple).unwrap_or(0).min(longest.saturating_mul(COMMON));
        last + Picos(common.saturating_mul(2))
    }

    fn on_link(&self, id: LinkId) -> impl Iterator<Item = &Rule> {
        self.rules.iter().zip(&self.links).filter(move |(_, links)| links.has(id)).map(|(rule, _)| rule)
    }
}

/// The least common multiple of two periods, or `u64::MAX` if the multiple does not fit.
fn common_multiple(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor.max(1)).saturating_mul(b)
}

/// The time in which a rule separates ranks; `None` for a rule that separates none.
fn gate(rule: &Rule) -> Option<When> {
    match rule {
        Rule::Partition { when, .. } | Rule::Cut { when, .. } | Rule::StopRank { when, .. } => Some(*when),
        _ => None,
    }
}

/// Whether `rule` separates these two ranks.
fn parts(rule: &Rule, from: Rank, to: Rank) -> bool {
    match rule {
        Rule::Partition { sides, .. } => {
            let side = |rank: Rank| sides.iter().position(|side| side.has(rank));
            side(from).zip(side(to)).is_some_and(|(from, to)| from != to)
        }
        Rule::Cut { pair, .. } => pair.has(from, to),
        Rule::StopRank { ranks, .. } => ranks.has(from) || ranks.has(to),
        _ => false,
    }
}

/// Whether a flapping link is down at time `at`: in every period since its rule began to hold, it is down for the last part.
fn is_down(down: Picos, period: Picos, when: When, at: Picos) -> bool {
    (at.0 - when.from.0) % period.0 >= period.0 - down.0
}

/// The next time after `at` at which a flapping link goes down or up.
fn flip(down: Picos, period: Picos, when: When, at: Picos) -> Option<Picos> {
    if !when.holds(at) {
        return when.changes(at);
    }
    let since = at.0 - when.from.0;
    let (begun, into) = (at.0 - since % period.0, since % period.0);
    let up = period.0 - down.0;
    let next = begun.checked_add(if into < up { up } else { period.0 })?;
    Some(Picos(next.min(when.until.0))).filter(|next| next.0 < u64::MAX)
}
