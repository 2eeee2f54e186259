//! The factor by which a fault makes something slower.

use crate::{BytesPerSec, Picos};
use std::fmt;

/// A slowdown factor in millionths: exact, and the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Factor(u64);

pub(super) const MILLION: u64 = 1_000_000;

impl Factor {
    /// The factor 1: no slowdown.
    pub const ONE: Factor = Factor(MILLION);

    /// The span multiplied by the factor, rounded up.
    pub fn of(self, span: Picos) -> Picos {
        let scaled = (u128::from(span.0) * u128::from(self.0)).div_ceil(u128::from(MILLION));
        Picos(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// The rate divided by the factor; at least 1 byte/s.
    pub fn lowers(self, rate: BytesPerSec) -> BytesPerSec {
        let lowered = u128::from(rate.0) * u128::from(MILLION) / u128::from(self.0);
        BytesPerSec(u64::try_from(lowered).unwrap_or(u64::MAX).max(1))
    }

    /// The product of this factor and `other`.
    pub(super) fn and(self, other: Factor) -> Factor {
        let product = u128::from(self.0) * u128::from(other.0) / u128::from(MILLION);
        Factor(u64::try_from(product).unwrap_or(u64::MAX))
    }

    /// The factor as a number of millionths.
    pub(super) fn millionths(self) -> u64 {
        self.0
    }

    /// A factor from text such as `4`, `1.5` or `10.25`: 1 or more, at most six decimals.
    pub(super) fn parse(text: &str) -> Option<Factor> {
        decimal(text, 6).filter(|factor| *factor >= MILLION).map(Factor)
    }
}

/// A decimal number with at most `places` decimals, as a multiple of 10^-`places`.
pub(super) fn decimal(text: &str, places: usize) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || decimals.len() > places || !digits(whole) || !digits(decimals) {
        return None;
    }
    // The zero in front makes the text a number even where there are no decimals.
    let rest: u64 = format!("0{decimals:0<places$}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(10u64.pow(places as u32))?.checked_add(rest)
}

/// `number` times 10^-`places` as decimal text, without trailing zeros.
pub(super) fn decimal_text(number: u64, places: u32) -> String {
    let unit = 10u64.pow(places);
    let width = places as usize;
    let text = format!("{}.{:0width$}", number / unit, number % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x{}", decimal_text(self.0, 6))
    }
}
