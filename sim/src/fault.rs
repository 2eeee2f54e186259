//! Fault rules: what is slower than it should be.
//!
//! ```text
//! slow_rank=3:x4            rank 3 takes 4 times as long over launches, overheads, reductions and computation
//! slow_link=nic_out[0]:x10  a tenth of the bandwidth
//! slow_link=up[5]:+20us     20 us more latency
//! ```
//!
//! A rule is checked against the topology where it is read, so that a typing error cannot pass as "no effect".

use crate::device::{Device, Work};
use crate::{BytesPerSec, Costs, Error, Link, LinkId, Picos, Rank, Result, Topology, suggest};
use std::fmt;

/// How many times slower, in millionths: exact, and the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Factor(u64);

const MILLION: u64 = 1_000_000;

impl Factor {
    /// As fast as it should be.
    pub const ONE: Factor = Factor(MILLION);

    /// A span that takes this many times as long; rounded up.
    pub fn of(self, span: Picos) -> Picos {
        let scaled = (u128::from(span.0) * u128::from(self.0)).div_ceil(u128::from(MILLION));
        Picos(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// A rate that is this many times lower; at least 1 byte/s.
    pub fn lowers(self, rate: BytesPerSec) -> BytesPerSec {
        let lowered = u128::from(rate.0) * u128::from(MILLION) / u128::from(self.0);
        BytesPerSec(u64::try_from(lowered).unwrap_or(u64::MAX).max(1))
    }

    /// The one after the other.
    fn and(self, other: Factor) -> Factor {
        let product = u128::from(self.0) * u128::from(other.0) / u128::from(MILLION);
        Factor(u64::try_from(product).unwrap_or(u64::MAX))
    }

    /// From `4`, `1.5` or `10.25`: 1 or more, six decimals at most.
    fn parse(text: &str) -> Option<Factor> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = |s: &str| s.bytes().all(|byte| byte.is_ascii_digit());
        if decimals.len() > 6 || !digits(whole) || !digits(decimals) {
            return None;
        }
        let millionths: u64 = format!("{decimals:0<6}").parse().ok()?;
        let factor = whole.parse::<u64>().ok()?.checked_mul(MILLION)?.checked_add(millionths)?;
        (factor >= MILLION).then_some(Factor(factor))
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x{}", self.0 as f64 / MILLION as f64)
    }
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// A rank that takes longer over everything that it does itself.
    SlowRank {
        /// Which.
        rank: Rank,
        /// How much slower.
        factor: Factor,
    },
    /// A link with less bandwidth or more latency.
    SlowLink {
        /// Which.
        link: LinkId,
        /// By how much its bandwidth is lower.
        factor: Factor,
        /// By how much its latency is higher.
        latency: Picos,
    },
}

impl Rule {
    /// Reads one rule, in the forms of the module's picture, and checks it against the topology.
    pub fn parse(text: &str, topology: &Topology) -> Result<Rule> {
        let (kind, rest) = text.split_once('=').ok_or_else(|| malformed(text))?;
        let (target, effect) = rest.rsplit_once(':').ok_or_else(|| malformed(text))?;
        let effect = effect.trim();
        let factor = match effect.strip_prefix('x') {
            Some(number) => Some(Factor::parse(number).ok_or_else(|| {
                Error::Fault(format!(
                    "`{effect}` in `{text}` is no factor; write x1 or more, such as x4 or x1.5"
                ))
            })?),
            None => None,
        };
        match kind.trim() {
            "slow_rank" => {
                let factor = factor.ok_or_else(|| {
                    Error::Fault(format!("`{effect}` in `{text}` must be a factor such as x4"))
                })?;
                Ok(Rule::SlowRank { rank: rank(target.trim(), text, topology)?, factor })
            }
            "slow_link" => {
                let link =
                    topology.find_link(target.trim()).map_err(|error| Error::Fault(error.to_string()))?;
                let latency = match factor {
                    Some(_) => Picos::ZERO,
                    None => latency(effect, text)?,
                };
                Ok(Rule::SlowLink { link, factor: factor.unwrap_or(Factor::ONE), latency })
            }
            other => Err(Error::Fault(suggest::unknown("rule", other, &["slow_rank", "slow_link"]))),
        }
    }
}

fn malformed(text: &str) -> Error {
    Error::Fault(format!(
        "`{text}` is no rule; write slow_rank=3:x4, slow_link=up[0]:x10 or slow_link=up[0]:+20us"
    ))
}

fn rank(name: &str, text: &str, topology: &Topology) -> Result<Rank> {
    let rank: u32 = name
        .parse()
        .map_err(|_| Error::Fault(format!("`{name}` in `{text}` is no rank; write a number from 0")))?;
    if rank >= topology.ranks() {
        let last = topology.ranks() - 1;
        return Err(Error::Fault(format!(
            "rank {rank} in `{text}` does not exist; ranks go from 0 to {last}"
        )));
    }
    Ok(Rank(rank))
}

/// From `+20us`: whole nanoseconds, microseconds or milliseconds.
fn latency(effect: &str, text: &str) -> Result<Picos> {
    let units = [("ns", 1_000), ("us", 1_000_000), ("ms", 1_000_000_000), ("ps", 1)];
    let parsed = effect.strip_prefix('+').and_then(|span| {
        units.iter().find_map(|(unit, picos)| {
            let number: u64 = span.strip_suffix(unit)?.trim().parse().ok()?;
            number.checked_mul(*picos)
        })
    });
    parsed.map(Picos).ok_or_else(|| {
        Error::Fault(format!(
            "`{effect}` in `{text}` is no effect; write a factor such as x10 or a latency such as +20us"
        ))
    })
}

/// All rules of a run. Rules on the same rank or link add up: factors multiply, latencies add.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    rules: Vec<Rule>,
}

impl Faults {
    /// Nothing is wrong.
    pub const NONE: Faults = Faults { rules: Vec::new() };

    /// From their texts, each checked against the topology.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>, topology: &Topology) -> Result<Faults> {
        let rules: Result<Vec<Rule>> = texts.into_iter().map(|text| Rule::parse(text, topology)).collect();
        Ok(Faults { rules: rules? })
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in the order given.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// How much slower a rank is.
    pub fn slowness(&self, rank: Rank) -> Factor {
        self.rules.iter().fold(Factor::ONE, |slowness, rule| match rule {
            Rule::SlowRank { rank: slow, factor } if *slow == rank => slowness.and(*factor),
            _ => slowness,
        })
    }

    /// What messages, launches and reductions cost on this rank; a message's overhead is its sender's.
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

    /// How long work takes on this rank.
    pub fn compute(&self, rank: Rank, device: &Device, work: Work) -> Picos {
        self.slowness(rank).of(device.time(work))
    }

    /// What a link can do.
    pub fn link(&self, id: LinkId, link: Link) -> Link {
        self.rules.iter().fold(link, |link, rule| match rule {
            Rule::SlowLink { link: slow, factor, latency } if *slow == id => {
                Link { bandwidth: factor.lowers(link.bandwidth), latency: link.latency + *latency }
            }
            _ => link,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Topology {
        Topology::named("nodes8", 16).unwrap()
    }

    fn error(text: &str) -> String {
        Rule::parse(text, &nodes()).unwrap_err().to_string()
    }

    #[test]
    fn a_slow_rank_is_slower_at_all_that_it_does_and_no_other_is() {
        let faults = Faults::parse(["slow_rank=3:x4", "slow_rank=3:x1.5"], &nodes()).unwrap();
        let costs = Costs { overhead: Picos(10), memory: Some(BytesPerSec(600)), ..Costs::default() };
        let slow = faults.costs(Rank(3), &costs);
        assert_eq!(
            (slow.overhead, slow.launch, slow.memory),
            (Picos(60), costs.launch * 6, Some(BytesPerSec(100)))
        );
        assert_eq!(faults.costs(Rank(4), &costs), costs);
        let work = Work { bytes: 3_350_000, ..Work::default() };
        assert_eq!(faults.compute(Rank(3), &Device::H100, work), Picos::from_micros(6));
    }

    #[test]
    fn a_slow_link_loses_bandwidth_or_gains_latency() {
        let topology = nodes();
        let faults = Faults::parse(["slow_link=nic_out[0]:x10", "slow_link=up[5]:+20us"], &topology).unwrap();
        let nic = topology.find_link("nic_out[0]").unwrap();
        let up = topology.find_link("up[5]").unwrap();
        let (was_nic, was_up) = (topology.link(nic), topology.link(up));
        assert_eq!(faults.link(nic, was_nic).bandwidth.0, was_nic.bandwidth.0 / 10);
        assert_eq!(faults.link(up, was_up).latency, was_up.latency + Picos::from_micros(20));
        assert_eq!(faults.link(LinkId(0), topology.link(LinkId(0))), topology.link(LinkId(0)));
    }

    #[test]
    fn a_rule_that_cannot_be_meant_says_what_would_be_right() {
        assert!(error("slow_rank=16:x4").contains("ranks go from 0 to 15"));
        assert!(error("slow_rank=1:+3us").contains("a factor such as x4"));
        assert!(error("slow_rank=1:x0.5").contains("x1 or more"));
        assert!(error("slow_lnk=up[0]:x2").contains("did you mean `slow_link`"));
        assert!(error("slow_link=upp[0]:x2").contains("did you mean `up`"));
        assert!(error("slow_link=up[16]:x2").contains("up[0] to up[15]"));
        assert!(error("slow_link=up[1]:+3").contains("such as +20us"));
        assert!(error("nonsense").contains("write slow_rank=3:x4"));
    }
}
