//! A fault rule as a value and as text; a printed rule parses to the same value.

use super::{Factor, Links, Noise, Pair, Ranks, When, Which, span};
use crate::{Device, Picos, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A fault rule. Its text consists of a kind, a target, an effect and a time, as [`KINDS`](super::KINDS) shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Rule {
    /// Ranks whose own work takes longer by a factor.
    SlowRank {
        /// The ranks that are slower.
        ranks: Ranks,
        /// The factor by which the ranks are slower.
        factor: Factor,
        /// The time in which the rule holds.
        when: When,
    },
    /// Ranks whose launches and computations each take a random time longer.
    JitterRank {
        /// The ranks that take longer.
        ranks: Ranks,
        /// The random extra time.
        noise: Noise,
        /// The time in which an affected launch or computation begins.
        when: When,
    },
    /// Ranks that compute on another device than the others.
    Device {
        /// The ranks that have the other device.
        ranks: Ranks,
        /// The other device.
        device: Device,
    },
    /// Ranks that make no progress and neither send nor receive, like a stopped process.
    StopRank {
        /// The ranks that are stopped.
        ranks: Ranks,
        /// The time in which the rule holds.
        when: When,
    },
    /// A rank that dies and does nothing from then on.
    DeadRank {
        /// The rank that dies.
        rank: Rank,
        /// When the rank dies: at a time or at one of its own steps.
        death: Death,
    },
    /// Links with less bandwidth or more latency.
    SlowLink {
        /// The links that are slower.
        links: Links,
        /// The factor by which the links' bandwidth is lower.
        factor: Factor,
        /// The extra latency of the links.
        latency: Picos,
        /// The time in which the rule holds.
        when: When,
    },
    /// Links on which every message takes a random time longer.
    JitterLink {
        /// The links that take longer.
        links: Links,
        /// The random extra time.
        noise: Noise,
        /// The time in which an affected message starts.
        when: When,
    },
    /// Links that carry nothing for the last part of every period.
    Flap {
        /// The links that go down.
        links: Links,
        /// How long the links are down in each period.
        down: Picos,
        /// The time from one outage to the next.
        period: Picos,
        /// The time in which the rule holds.
        when: When,
    },
    /// Sets of ranks between which no message passes; a rank that is in no set can reach all ranks.
    Partition {
        /// The sets of ranks, two or more.
        sides: Vec<Ranks>,
        /// The time in which the rule holds.
        when: When,
    },
    /// Pairs of ranks between which no message passes, in one direction or both.
    Cut {
        /// The senders and receivers that are cut off.
        pair: Pair,
        /// The time in which the rule holds.
        when: When,
    },
    /// Messages that never arrive.
    Drop {
        /// The sender and the receiver.
        pair: Pair,
        /// The messages of the pair that the rule selects.
        which: Which,
        /// The time in which an affected message starts.
        when: When,
    },
    /// Messages of which a bit is flipped.
    Corrupt {
        /// The sender and the receiver.
        pair: Pair,
        /// The messages of the pair that the rule selects.
        which: Which,
        /// The time in which an affected message starts.
        when: When,
    },
    /// Messages that are sent twice; the receiver drops the second.
    Duplicate {
        /// The sender and the receiver.
        pair: Pair,
        /// The messages of the pair that the rule selects.
        which: Which,
        /// The time in which an affected message starts.
        when: When,
    },
    /// Messages that arrive later.
    Delay {
        /// The sender and the receiver.
        pair: Pair,
        /// The messages of the pair that the rule selects.
        which: Which,
        /// The random extra time.
        noise: Noise,
        /// The time in which an affected message starts.
        when: When,
    },
    /// Messages that are held back until the pair's next message has passed, or for `hold` at most. The receiver restores the
    /// order, so on virtual time the effect is a delay.
    Reorder {
        /// The sender and the receiver.
        pair: Pair,
        /// The messages of the pair that the rule selects.
        which: Which,
        /// The longest time that a message is held back.
        hold: Picos,
        /// The time in which an affected message starts.
        when: When,
    },
}

/// When a rank dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Death {
    /// The rank dies at this time.
    At(Picos),
    /// The rank dies before its first step in this round, or a later round, of this operation; operations of a communicator count
    /// from 0. If the operation has no such step on this rank, the rank dies after its last step of the operation.
    In {
        /// The operation's number in its communicator.
        operation: u64,
        /// The first round that the rank does not take part in.
        round: u64,
    },
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Death::At(at) => write!(f, "@{}", span::text(*at)),
            Death::In { operation, round: 0 } => write!(f, ":op{operation}"),
            Death::In { operation, round } => write!(f, ":op{operation}.round{round}"),
        }
    }
}

impl Rule {
    /// When the rule begins to hold; `None` for a device, and for a death at a step.
    pub fn begins(&self) -> Option<Picos> {
        match self {
            Rule::Device { .. } | Rule::DeadRank { death: Death::In { .. }, .. } => None,
            Rule::DeadRank { death: Death::At(at), .. } => Some(*at),
            Rule::SlowRank { when, .. }
            | Rule::JitterRank { when, .. }
            | Rule::StopRank { when, .. }
            | Rule::SlowLink { when, .. }
            | Rule::JitterLink { when, .. }
            | Rule::Flap { when, .. }
            | Rule::Partition { when, .. }
            | Rule::Cut { when, .. }
            | Rule::Drop { when, .. }
            | Rule::Corrupt { when, .. }
            | Rule::Duplicate { when, .. }
            | Rule::Delay { when, .. }
            | Rule::Reorder { when, .. } => Some(when.from),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::SlowRank { ranks, factor, when } => write!(f, "slow_rank={ranks}:{factor}{when}"),
            Rule::JitterRank { ranks, noise, when } => write!(f, "jitter_rank={ranks}:{noise}{when}"),
            Rule::Device { ranks, device } => write!(f, "device={ranks}:{}", device.name),
            Rule::StopRank { ranks, when: When::ALWAYS } => write!(f, "stop_rank={ranks}@0ps.."),
            Rule::StopRank { ranks, when } => write!(f, "stop_rank={ranks}{when}"),
            Rule::DeadRank { rank, death } => write!(f, "dead_rank={rank}{death}"),
            Rule::SlowLink { links, factor, latency: Picos::ZERO, when } => {
                write!(f, "slow_link={links}:{factor}{when}")
            }
            Rule::SlowLink { links, factor: Factor::ONE, latency, when } => {
                write!(f, "slow_link={links}:+{}{when}", span::text(*latency))
            }
            Rule::SlowLink { links, factor, latency, when } => {
                write!(f, "slow_link={links}:{factor}+{}{when}", span::text(*latency))
            }
            Rule::JitterLink { links, noise, when } => write!(f, "jitter_link={links}:{noise}{when}"),
            Rule::Flap { links, down, period, when } => {
                write!(f, "flap={links}:{}/{}{when}", span::text(*down), span::text(*period))
            }
            Rule::Partition { sides, when } => {
                let sides: Vec<String> = sides.iter().map(Ranks::to_string).collect();
                write!(f, "partition={}{when}", sides.join("|"))
            }
            Rule::Cut { pair, when } => write!(f, "cut={pair}{when}"),
            Rule::Drop { pair, which, when } => write!(f, "drop={pair}:{which}{when}"),
            Rule::Corrupt { pair, which, when } => write!(f, "corrupt={pair}:{which}{when}"),
            Rule::Duplicate { pair, which, when } => write!(f, "duplicate={pair}:{which}{when}"),
            Rule::Delay { pair, which, noise, when } => write!(f, "delay={pair}:{which}:{noise}{when}"),
            Rule::Reorder { pair, which, hold, when } => {
                write!(f, "reorder={pair}:{which}:+{}{when}", span::text(*hold))
            }
        }
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> String {
        rule.to_string()
    }
}

impl TryFrom<String> for Rule {
    type Error = crate::Error;
    fn try_from(text: String) -> crate::Result<Rule> {
        text.parse()
    }
}
