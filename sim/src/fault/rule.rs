//! One rule, as a value and as text; the two go round: what is printed is read again.

use super::{Factor, Links, Noise, Pair, Ranks, When, Which, span};
use crate::{Device, Picos, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One thing that is wrong. In text: a kind, its target, its effect and when, as [`KINDS`](super::KINDS) shows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Rule {
    /// Ranks that take longer over everything that they do themselves.
    SlowRank {
        /// The ranks.
        ranks: Ranks,
        /// The factor by which the ranks are slower.
        factor: Factor,
        /// The time in which the rule holds.
        when: When,
    },
    /// Ranks whose every launch and computation takes a random time longer.
    JitterRank {
        /// The ranks.
        ranks: Ranks,
        /// The random extra time.
        noise: Noise,
        /// Launches and computations that begin then.
        when: When,
    },
    /// Ranks that compute on another device than the others.
    Device {
        /// The ranks.
        ranks: Ranks,
        /// The other device.
        device: Device,
    },
    /// Ranks that stand still, and neither send nor receive: a process that was stopped.
    StopRank {
        /// The ranks.
        ranks: Ranks,
        /// The time in which the rule holds.
        when: When,
    },
    /// A rank that dies and does nothing any more.
    DeadRank {
        /// The rank.
        rank: Rank,
        /// When, by the clock or by its own steps.
        death: Death,
    },
    /// Links with less bandwidth or more latency.
    SlowLink {
        /// The links.
        links: Links,
        /// The factor by which the links' bandwidth is lower.
        factor: Factor,
        /// The extra latency of the links.
        latency: Picos,
        /// The time in which the rule holds.
        when: When,
    },
    /// Links over which every message takes a random time more.
    JitterLink {
        /// The links.
        links: Links,
        /// The random extra time.
        noise: Noise,
        /// Messages that start then.
        when: When,
    },
    /// Links that carry nothing for the last part of every period.
    Flap {
        /// The links.
        links: Links,
        /// How long they are down in each period.
        down: Picos,
        /// The time from one failure to the next.
        period: Picos,
        /// The time in which the rule holds.
        when: When,
    },
    /// Sets of ranks between which no message passes; a rank in none of them reaches all.
    Partition {
        /// The sets, two or more.
        sides: Vec<Ranks>,
        /// The time in which the rule holds.
        when: When,
    },
    /// Pairs of ranks between which nothing passes, one way or both.
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
        /// The messages that start at that time.
        when: When,
    },
    /// Messages of which a bit is flipped.
    Corrupt {
        /// The sender and the receiver.
        pair: Pair,
        /// The messages of the pair that the rule selects.
        which: Which,
        /// The messages that start at that time.
        when: When,
    },
    /// Messages that are sent twice; the receiver drops the second.
    Duplicate {
        /// The sender and the receiver.
        pair: Pair,
        /// The messages of the pair that the rule selects.
        which: Which,
        /// The messages that start at that time.
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
        /// The messages that start at that time.
        when: When,
    },
    /// Messages that the next one overtakes: they are held back until it has passed, or for this long at most. The
    /// receiver puts them in order again, so that on virtual time it is a delay.
    Reorder {
        /// The sender and the receiver.
        pair: Pair,
        /// The messages of the pair that the rule selects.
        which: Which,
        /// The longest time that a message is held back.
        hold: Picos,
        /// The messages that start at that time.
        when: When,
    },
}

/// When a rank dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Death {
    /// At this time.
    At(Picos),
    /// Before its first step in this round or a later one of this operation; operations of a communicator count
    /// from 0. Where it has no such step, when it has done all others.
    In {
        /// The operation.
        operation: u64,
        /// The round.
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
