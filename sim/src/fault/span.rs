//! Spans of time, and the time in which a rule holds, as text: `20us`, `1.5ms`, `5ms..20ms`.

use super::factor::{decimal, decimal_text};
use crate::Picos;
use std::fmt;

/// Units of time from the longest to the shortest: name, picoseconds, and the number of decimals down to one picosecond.
const UNITS: [(&str, u64, u32); 5] = [
    ("s", 1_000_000_000_000, 12),
    ("ms", 1_000_000_000, 9),
    ("us", 1_000_000, 6),
    ("ns", 1_000, 3),
    ("ps", 1, 0),
];

/// The span that a text such as `20us` or `1.5ms` names: a number and a unit, one of s, ms, us, ns, ps.
pub fn span(text: &str) -> Option<Picos> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_string();
    let (_, _, places) = UNITS.iter().find(|(name, ..)| *name == unit)?;
    decimal(number.trim(), *places as usize).map(Picos)
}

/// The span as text, in the longest unit in which it is 1 or more and has at most three decimals.
pub(super) fn text(Picos(picos): Picos) -> String {
    let fits = |(_, size, _): &&(&str, u64, u32)| picos >= *size && picos % (*size / 1_000).max(1) == 0;
    match UNITS.iter().find(fits) {
        Some((name, _, places)) => format!("{}{name}", decimal_text(picos, *places)),
        None => format!("{picos}ps"),
    }
}

/// The time in which a rule holds: from `from` up to, but not including, `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct When {
    /// The first moment at which the rule holds.
    pub from: Picos,
    /// The first moment at which the rule no longer holds; `Picos(u64::MAX)` if it holds for ever.
    pub until: Picos,
}

impl When {
    /// A rule that holds from the start to the end of the run.
    pub const ALWAYS: When = When { from: Picos::ZERO, until: Picos(u64::MAX) };

    /// Whether the rule holds at time `at`.
    pub fn holds(&self, at: Picos) -> bool {
        self.from <= at && at < self.until
    }

    /// The next time after `at` at which the rule begins or ceases to hold; `None` if there is none.
    pub fn changes(&self, at: Picos) -> Option<Picos> {
        [self.from, self.until].into_iter().find(|&edge| edge > at && edge.0 < u64::MAX)
    }

    /// The time in which a rule holds, from text: `5ms..20ms`, `5ms..` or `..20ms`.
    pub(super) fn parse(text: &str) -> Option<When> {
        let (from, until) = text.split_once("..")?;
        let or = |text: &str, none: Picos| if text.is_empty() { Some(none) } else { span(text) };
        let when = When { from: or(from, Picos::ZERO)?, until: or(until, Picos(u64::MAX))? };
        (when.from < when.until).then_some(when)
    }
}

/// Prints `@5ms..20ms`, or nothing for a rule that always holds.
impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.until.0) {
            (When::ALWAYS, _) => Ok(()),
            (_, u64::MAX) => write!(f, "@{}..", text(self.from)),
            _ => write!(f, "@{}..{}", text(self.from), text(self.until)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_are_read_in_any_unit_and_to_the_picosecond() {
        assert_eq!(span("20us"), Some(Picos::from_micros(20)));
        assert_eq!(span("1.5ms"), Some(Picos::from_micros(1500)));
        assert_eq!(span("0.000000000001s"), Some(Picos(1)));
        for wrong in ["", "us", "20", "20 minutes", "1.5ps", "-3us", "3usus", "99999999999s"] {
            assert_eq!(span(wrong), None, "{wrong}");
        }
        assert_eq!(When::parse("5ms..5ms"), None);
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_again(picos in any::<u64>(), tiny in 0u64..2_000, small in 0u64..5_000_000_000, until in 1u64..9_000_000) {
            prop_assert_eq!(span(&text(Picos(picos))), Some(Picos(picos)));
            prop_assert_eq!(span(&text(Picos(small))), Some(Picos(small)));
            prop_assert_eq!(span(&text(Picos(tiny))), Some(Picos(tiny)));
            let when = When { from: Picos(small), until: Picos(small + until) };
            prop_assert_eq!(When::parse(&when.to_string()[1..]), Some(when));
        }
    }
}
