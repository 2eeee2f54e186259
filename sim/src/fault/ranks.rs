//! The targets of fault rules: ranks, pairs of ranks, links and messages.

use super::factor::{decimal, decimal_text};
use crate::Rank;
use std::fmt;

/// A set of ranks, as `*`, `3`, `2-5` or `0,4-7`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ranks {
    /// Every rank.
    All,
    /// Ranges of ranks, first and last, in the order given.
    Some(Vec<(u32, u32)>),
}

impl Ranks {
    /// The set of this rank alone.
    pub fn one(Rank(rank): Rank) -> Ranks {
        Ranks::Some(vec![(rank, rank)])
    }

    /// Whether the set contains this rank.
    pub fn has(&self, Rank(rank): Rank) -> bool {
        match self {
            Ranks::All => true,
            Ranks::Some(stretches) => stretches.iter().any(|&(first, last)| first <= rank && rank <= last),
        }
    }

    /// The greatest rank that the text names; `None` for `*`.
    pub(super) fn greatest(&self) -> Option<u32> {
        match self {
            Ranks::All => None,
            Ranks::Some(stretches) => stretches.iter().map(|stretch| stretch.1).max(),
        }
    }

    pub(super) fn parse(text: &str) -> Option<Ranks> {
        if text.trim() == "*" {
            return Some(Ranks::All);
        }
        let stretch = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let stretch = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (stretch.0 <= stretch.1).then_some(stretch)
        };
        text.split(',').map(stretch).collect::<Option<Vec<_>>>().map(Ranks::Some)
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ranks::All => f.write_str("*"),
            Ranks::Some(stretches) => f.write_str(&listed(stretches)),
        }
    }
}

fn listed(stretches: &[(u32, u32)]) -> String {
    let one = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    stretches.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Ordered pairs of ranks: `0>1` from rank 0 to rank 1, `0<>1` both directions, `*>3` from every rank to rank 3.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The senders of the messages.
    pub from: Ranks,
    /// The receivers of the messages.
    pub to: Ranks,
    /// Whether messages from `to` to `from` are covered, too.
    pub both: bool,
}

impl Pair {
    /// Whether the pair covers messages from one rank to another.
    pub fn has(&self, from: Rank, to: Rank) -> bool {
        from != to
            && (self.from.has(from) && self.to.has(to) || self.both && self.from.has(to) && self.to.has(from))
    }

    pub(super) fn parse(text: &str) -> Option<Pair> {
        let (from, to, both) = match text.split_once("<>") {
            Some((from, to)) => (from, to, true),
            None => text.split_once('>').map(|(from, to)| (from, to, false))?,
        };
        Some(Pair { from: Ranks::parse(from)?, to: Ranks::parse(to)?, both })
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.from, if self.both { "<>" } else { ">" }, self.to)
    }
}

/// The links of a rule: `up[5]`, `up[0,4-7]`, `up[*]`, or `*` for all. The topology defines the link families, such as `up`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Links {
    /// The name of the link family; `None` for all links.
    pub family: Option<String>,
    /// The links of the family, by number.
    pub which: Ranks,
}

impl Links {
    pub(super) fn parse(text: &str) -> Option<Links> {
        if text == "*" {
            return Some(Links { family: None, which: Ranks::All });
        }
        let (family, which) = text.strip_suffix(']')?.rsplit_once('[')?;
        Some(Links { family: Some(family.into()), which: Ranks::parse(which)? })
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.family {
            Some(family) => write!(f, "{family}[{}]", self.which),
            None => f.write_str("*"),
        }
    }
}

/// The messages of a pair that a rule affects: `#3` the third, `0.5%` each message with that probability, `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// Every message.
    All,
    /// The n-th message from one rank to another, from 1, in the order in which messages start.
    Nth(u64),
    /// Each message independently, with this probability in millionths.
    Chance(u32),
}

impl Which {
    pub(super) fn parse(text: &str) -> Option<Which> {
        if text == "all" {
            return Some(Which::All);
        }
        if let Some(number) = text.strip_prefix('#') {
            return number.parse().ok().filter(|nth| *nth > 0).map(Which::Nth);
        }
        // A percentage with four decimals is a whole number of millionths.
        let chance = decimal(text.strip_suffix('%')?, 4).filter(|chance| *chance <= 1_000_000)?;
        u32::try_from(chance).ok().map(Which::Chance)
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::All => f.write_str("all"),
            Which::Nth(nth) => write!(f, "#{nth}"),
            Which::Chance(millionths) => write!(f, "{}%", decimal_text((*millionths).into(), 4)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_pairs_and_shares_are_read_and_mean_what_they_say() {
        let ranks = Ranks::parse("0,4-7").unwrap();
        assert!(ranks.has(Rank(0)) && ranks.has(Rank(5)) && !ranks.has(Rank(3)) && !ranks.has(Rank(8)));
        let both = Pair::parse("0-1<>2").unwrap();
        assert!(both.has(Rank(1), Rank(2)) && both.has(Rank(2), Rank(0)) && !both.has(Rank(0), Rank(1)));
        let one = Pair::parse("*>3").unwrap();
        assert!(one.has(Rank(0), Rank(3)) && !one.has(Rank(3), Rank(0)) && !one.has(Rank(3), Rank(3)));
        assert_eq!(Which::parse("0.5%"), Some(Which::Chance(5_000)));
        for wrong in ["101%", "#0", "#", "%", "3"] {
            assert_eq!(Which::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Ranks::parse("5-2"), None);
    }
}
