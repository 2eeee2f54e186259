//! Fault rules: which ranks and links are slow, which messages are lost or damaged, which ranks stop or die, and when.
//!
//! ```text
//! slow_rank=3:x4@5ms..20ms     slow_link=up[5]:+20us     drop=0>1:#3     partition=0-3|4-7@5ms..     dead_rank=3:op2
//! ```
//!
//! A rule is checked against the topology when it is read, so that a typing error cannot pass as "no effect". Every random value is
//! a hash of the seed and of the message or rank that it is for, not of the order of calls: the same rules and seed cause the same
//! faults in every engine and every run.
//!
//! ```
//! use allfold_sim::{Faults, Picos, Rank, Topology, fault::Message};
//!
//! let topology = Topology::named("nodes8", 16)?;
//! let faults = Faults::parse(["drop=0>1:#3", "delay=*>*:all:exp(5us)"], &topology)?.seeded(7);
//! let third = Message { from: Rank(0), to: Rank(1), operation: 0, round: 2, nth: 3, at: Picos::ZERO };
//! assert!(faults.verdict(&third).dropped);
//! assert!(!faults.verdict(&Message { nth: 4, round: 3, ..third }).dropped);
//! # Ok::<(), allfold_sim::Error>(())
//! ```

mod factor;
mod grammar;
mod link_faults;
mod noise;
mod pace;
mod ranks;
mod reader;
mod rule;
mod span;
mod verdict;

#[cfg(test)]
mod tests;

pub use factor::Factor;
pub use grammar::{FaultKind, KINDS};
pub use noise::{Draw, Noise};
pub use pace::Paced;
pub use ranks::{Links, Pair, Ranks, Which};
pub use rule::{Death, Rule};
pub use span::{When, span};
pub use verdict::{Message, MessageEffects};

use crate::topology::Family;
use crate::{Error, LinkId, Picos, Rank, Result, Topology};

/// All rules of a run, and the seed of the random ones. Rules on the same rank or link add up: factors multiply, latencies add.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    rules: Vec<Rule>,
    /// The links of each rule.
    links: Vec<LinkSet>,
    seed: u64,
}

impl Faults {
    /// No faults.
    pub const NONE: Faults = Faults { rules: Vec::new(), links: Vec::new(), seed: 0 };

    /// Fault rules with seed 0, each checked against the topology.
    ///
    /// # Errors
    /// A rule names a rank or a link that does not exist.
    pub fn new(rules: Vec<Rule>, topology: &Topology) -> Result<Faults> {
        let links = rules.iter().map(|rule| {
            within(rule, topology.ranks())?;
            LinkSet::of(rule, topology)
        });
        Ok(Faults { links: links.collect::<Result<_>>()?, rules, seed: 0 })
    }

    /// Fault rules from their texts, with seed 0, each checked against the topology.
    ///
    /// # Errors
    /// A text is not a rule, or names a rank or link that does not exist.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>, topology: &Topology) -> Result<Faults> {
        let examples = || match topology.families().first() {
            Some(family) if family.count == 1 => format!("{}[0]", family.name),
            Some(Family { name, .. }) => format!("{name}[0], {name}[0-3] or {name}[*]"),
            None => reader::LINK_EXAMPLES.into(),
        };
        let rule = |text: &str| match text.parse() {
            Err(Error::Fault(what)) => Err(Error::Fault(what.replace(reader::LINK_EXAMPLES, &examples()))),
            read => read,
        };
        let rules: Result<Vec<Rule>> = texts.into_iter().map(rule).collect();
        Faults::new(rules?, topology)
    }

    /// Fault rules about ranks and messages only, for real sockets, where no topology is known.
    ///
    /// # Errors
    /// A rule names a rank that does not exist, or a link.
    pub fn of_ranks(rules: Vec<Rule>, ranks: u32) -> Result<Faults> {
        for rule in &rules {
            within(rule, ranks)?;
            if links_of(rule).is_some() {
                return Err(Error::Fault(format!(
                    "`{rule}` names links, and real sockets have none with a name; write delay=0>1:all:+20us or cut=0>1"
                )));
            }
        }
        Ok(Faults { links: vec![LinkSet::default(); rules.len()], rules, seed: 0 })
    }

    /// The same fault rules with seed `seed`.
    pub fn seeded(self, seed: u64) -> Faults {
        Faults { seed, ..self }
    }

    /// The seed of random effects.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether there are no fault rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in the order given.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// A line for each rule that begins only after a run has ended, at `end`, and so has no effect.
    pub fn late(&self, end: Picos) -> impl Iterator<Item = String> {
        let late = self.rules.iter().filter(move |rule| rule.begins().is_some_and(|begins| begins >= end));
        late.map(|rule| format!("`{rule}` begins after the end, and has no effect"))
    }

    /// Whether all rules change the speed of ranks and links for the whole run and do nothing else. How long work and messages take
    /// then does not depend on when they start.
    pub fn is_steady(&self) -> bool {
        self.rules.iter().all(|rule| match rule {
            Rule::SlowRank { when, .. } | Rule::SlowLink { when, .. } => *when == When::ALWAYS,
            Rule::Device { .. } => true,
            _ => false,
        })
    }

    /// Whether any rule affects single messages, so that [`Faults::verdict`] and [`Faults::lateness`] must be called.
    pub fn touch_messages(&self) -> bool {
        self.rules.iter().any(|rule| match rule {
            Rule::SlowLink { when, latency, .. } => *when != When::ALWAYS && latency.0 > 0,
            Rule::JitterLink { .. }
            | Rule::Drop { .. }
            | Rule::Corrupt { .. }
            | Rule::Duplicate { .. }
            | Rule::Delay { .. }
            | Rule::Reorder { .. } => true,
            _ => false,
        })
    }

    /// The ranks that die at a point in time (not at one of their steps), with that time.
    pub fn deaths_by_clock(&self, ranks: u32) -> impl Iterator<Item = (Rank, Picos)> {
        (0..ranks).map(Rank).filter_map(|rank| match self.death(rank) {
            Some(Death::At(at)) => Some((rank, at)),
            _ => None,
        })
    }

    /// When rank `of` dies, by the first rule about its death; `None` if it does not die.
    pub fn death(&self, of: Rank) -> Option<Death> {
        self.rules.iter().find_map(|rule| match rule {
            Rule::DeadRank { rank, death } if *rank == of => Some(*death),
            _ => None,
        })
    }
}

/// A set of links of a topology, as ranges of link numbers (first, last).
#[derive(Clone, Debug, Default, PartialEq)]
struct LinkSet(Vec<(u32, u32)>);

impl LinkSet {
    fn has(&self, LinkId(link): LinkId) -> bool {
        self.0.iter().any(|&(first, last)| first <= link && link <= last)
    }

    fn all(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.0.iter().flat_map(|&(first, last)| (first..=last).map(LinkId))
    }

    /// The links that `rule` names.
    ///
    /// # Errors
    /// The rule names links that do not exist.
    fn of(rule: &Rule, topology: &Topology) -> Result<LinkSet> {
        let Some(links) = links_of(rule) else { return Ok(LinkSet::default()) };
        let Some(family) = &links.family else {
            return Ok(LinkSet(topology.links().checked_sub(1).map(|last| (0, last)).into_iter().collect()));
        };
        let found = |at: u32| {
            let link = topology.find_link(&format!("{family}[{at}]"));
            link.map(|link| link.0).map_err(|error| Error::Fault(error.to_string()))
        };
        match &links.which {
            Ranks::All => {
                let first = found(0)?;
                Ok(LinkSet(vec![(first, first + topology.family(LinkId(first)).count - 1)]))
            }
            Ranks::Some(stretches) => stretches
                .iter()
                .map(|&(first, last)| Ok((found(first)?, found(last)?)))
                .collect::<Result<_>>()
                .map(LinkSet),
        }
    }
}

fn links_of(rule: &Rule) -> Option<&Links> {
    match rule {
        Rule::SlowLink { links, .. } | Rule::JitterLink { links, .. } | Rule::Flap { links, .. } => {
            Some(links)
        }
        _ => None,
    }
}

/// Checks that every rank that `rule` names exists.
fn within(rule: &Rule, ranks: u32) -> Result<()> {
    let named: Vec<Option<u32>> = match rule {
        Rule::SlowRank { ranks, .. }
        | Rule::JitterRank { ranks, .. }
        | Rule::Device { ranks, .. }
        | Rule::StopRank { ranks, .. } => vec![ranks.greatest()],
        Rule::DeadRank { rank, .. } => vec![Some(rank.0)],
        Rule::Partition { sides, .. } => sides.iter().map(Ranks::greatest).collect(),
        Rule::Cut { pair, .. }
        | Rule::Drop { pair, .. }
        | Rule::Corrupt { pair, .. }
        | Rule::Duplicate { pair, .. }
        | Rule::Delay { pair, .. }
        | Rule::Reorder { pair, .. } => vec![pair.from.greatest(), pair.to.greatest()],
        Rule::SlowLink { .. } | Rule::JitterLink { .. } | Rule::Flap { .. } => Vec::new(),
    };
    match named.into_iter().flatten().find(|named| *named >= ranks) {
        Some(rank) => {
            let last = ranks.saturating_sub(1);
            Err(Error::Fault(format!("rank {rank} in `{rule}` does not exist; ranks go from 0 to {last}")))
        }
        None => Ok(()),
    }
}
