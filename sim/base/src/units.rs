//! Newtypes that carry the unit: a rank, bytes, picoseconds, bytes per second.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};

/// One participant: a device, a process or a thread, numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(transparent))]
pub struct Rank(pub u32);

impl Rank {
    /// The most ranks that a command, a record or a configuration may name. Every count of ranks that comes from outside is held to this
    /// limit, so that work that grows with the number of ranks has an end.
    pub const MOST: u32 = 1 << 20;

    /// The rank as an index into a slice.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank with the same position in the block of `block` ranks that comes as far from the end of all `ranks` ranks as this
    /// rank's block from their beginning: with blocks of 2, ranks 0 1 2 3 4 5 become 4 5 2 3 0 1. `block` divides `ranks`.
    pub const fn mirrored(self, block: u32, ranks: u32) -> Rank {
        Rank(ranks - block - (self.0 - self.0 % block) + self.0 % block)
    }

    /// Ranks as words of a sentence: "rank 3", "ranks 2, 5".
    pub fn list(of: &[Rank]) -> String {
        let list: Vec<String> = of.iter().map(Rank::to_string).collect();
        match list.len() {
            1 => format!("rank {}", list[0]),
            _ => format!("ranks {}", list.join(", ")),
        }
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(transparent))]
pub struct Bytes(pub u64);

/// Virtual time in whole picoseconds: a time since the start of the run, or a span. The greatest value is 213 days; longer times
/// saturate at it, and engines report this as an overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(transparent))]
pub struct Picos(pub u64);

impl Picos {
    /// A span of zero picoseconds.
    pub const ZERO: Picos = Picos(0);
    /// A time from whole nanoseconds.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Picos {
        Picos(nanos * 1_000)
    }
    /// A time from whole microseconds.
    #[inline]
    pub const fn from_micros(micros: u64) -> Picos {
        Picos(micros * 1_000_000)
    }
    /// The time in microseconds, for tables and records.
    #[inline]
    pub fn as_micros(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// The time in seconds.
    #[inline]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e12
    }
    /// The later of two times.
    #[inline]
    pub fn later(self, other: Picos) -> Picos {
        self.max(other)
    }
}

impl Add for Picos {
    type Output = Picos;
    #[inline]
    fn add(self, other: Picos) -> Picos {
        Picos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Picos {
    #[inline]
    fn add_assign(&mut self, other: Picos) {
        self.0 = self.0.saturating_add(other.0);
    }
}

/// Subtracting a later time from an earlier one is a bug of the caller and panics in every build.
impl Sub for Picos {
    type Output = Picos;
    #[inline]
    #[track_caller]
    fn sub(self, other: Picos) -> Picos {
        match self.0.checked_sub(other.0) {
            Some(span) => Picos(span),
            None => runs_back(other, self),
        }
    }
}

#[cold]
#[track_caller]
fn runs_back(from: Picos, to: Picos) -> Picos {
    panic!("virtual time never runs back: from {} ps to {} ps", from.0, to.0)
}

impl Mul<u64> for Picos {
    type Output = Picos;
    #[inline]
    fn mul(self, times: u64) -> Picos {
        Picos(self.0.saturating_mul(times))
    }
}

impl fmt::Display for Picos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} us", self.as_micros())
    }
}

/// A rate in whole bytes per second. The prefixes are SI: 1 GB/s is 1e9 bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(transparent))]
pub struct BytesPerSec(pub u64);

impl BytesPerSec {
    /// A rate from GB/s (1e9 bytes per second).
    #[inline]
    pub fn from_gb(gb: f64) -> BytesPerSec {
        BytesPerSec((gb * 1e9).round() as u64)
    }
    /// The rate in GB/s.
    #[inline]
    pub fn as_gb(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// How long `bytes` take at this rate, rounded up to a whole picosecond. A rate of zero is a bug of the caller: topologies
    /// refuse such links.
    #[inline]
    pub fn time(self, bytes: Bytes) -> Picos {
        const PICOS: u64 = 1_000_000_000_000;
        match bytes.0.checked_mul(PICOS) {
            Some(units) => Picos(units.div_ceil(self.0)),
            None => {
                let picos = (u128::from(bytes.0) * u128::from(PICOS)).div_ceil(u128::from(self.0));
                Picos(u64::try_from(picos).unwrap_or(u64::MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "virtual time never runs back: from 3 ps to 2 ps")]
    fn a_span_that_ends_before_it_begins_never_wraps() {
        let _ = Picos(2) - Picos(3);
    }

    #[test]
    fn sums_and_products_of_times_stay_at_the_greatest() {
        let last = Picos(u64::MAX - 1);
        let mut sum = last;
        sum += Picos(5);
        assert_eq!([sum, last + Picos(2), last * 3], [Picos(u64::MAX); 3]);
        assert_eq!(Picos(7) - Picos(7), Picos::ZERO);
    }
}
