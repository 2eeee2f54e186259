//! Quantities with units in files and flags, such as `"25 GB/s"`, `"200 Gb/s"` or `"2.7 us"`.
//!
//! A number without a unit is an error that lists the possible readings: 200 Gb/s are 25 GB/s, and mistaking one unit for the other
//! is an error by a factor of eight.

use crate::{BytesPerSec, Picos};
use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use std::fmt;
use std::str::FromStr;

/// The bandwidth of a link or a memory in each direction: 1e-7 to 1e9 GB/s (1 GB/s is 1e9 bytes per second).
///
/// ```
/// use allfold_sim::quantity::Bandwidth;
///
/// let nic: Bandwidth = "200 Gb/s".parse().unwrap();
/// assert_eq!(nic.gb_per_s(), 25.0);
/// let error = "200".parse::<Bandwidth>().unwrap_err();
/// assert_eq!(error, "`200` has no unit; write \"200 GB/s\" (1600 Gb/s) or \"200 Gb/s\" (25 GB/s)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Bandwidth(f64);

/// A latency or another cost in time: from 0 to 1000 s.
///
/// ```
/// use allfold_sim::{Picos, quantity::Latency};
///
/// let latency: Latency = "2.7 us".parse().unwrap();
/// assert_eq!(latency.picos(), Picos(2_700_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Latency(f64);

/// Units of bandwidth with their value in GB/s.
const BANDWIDTHS: [(&str, f64); 8] = [
    ("GB/s", 1.0),
    ("Gb/s", 0.125),
    ("Gbit/s", 0.125),
    ("Gbps", 0.125),
    ("MB/s", 1e-3),
    ("Mb/s", 0.125e-3),
    ("TB/s", 1e3),
    ("Tb/s", 125.0),
];
/// Units of time with their value in microseconds.
const TIMES: [(&str, f64); 5] = [("ps", 1e-6), ("ns", 1e-3), ("us", 1.0), ("ms", 1e3), ("s", 1e6)];

impl Bandwidth {
    /// The bandwidth in GB/s (1e9 bytes per second).
    pub fn gb_per_s(self) -> f64 {
        self.0
    }

    /// The bandwidth in Gb/s (1e9 bits per second).
    pub fn gbit_per_s(self) -> f64 {
        self.0 * 8.0
    }

    /// The part of each of `parts` links that have this bandwidth together.
    pub(crate) fn shared(self, parts: u32) -> Bandwidth {
        Bandwidth(self.0 / f64::from(parts.max(1)))
    }

    /// The bandwidth in whole bytes per second.
    pub fn bytes(self) -> BytesPerSec {
        BytesPerSec::from_gb(self.0)
    }
}

impl Latency {
    /// A latency of this many microseconds.
    pub(crate) const fn from_micros(micros: f64) -> Latency {
        Latency(micros)
    }

    /// The latency in whole picoseconds.
    pub fn picos(self) -> Picos {
        Picos((self.0 * 1e6).round() as u64)
    }
}

/// Splits a text into the number at its start and the unit after it.
fn split(text: &str) -> (Option<f64>, &str) {
    let text = text.trim();
    // An `e` belongs to the number, as in `1e3`; no unit begins with `e`.
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(text.len());
    (text[..end].parse().ok().filter(|number: &f64| number.is_finite()), text[end..].trim_start())
}

/// The number in `text` times the factor of its unit.
fn scaled(text: &str, units: &[(&str, f64)], bare: fn(&str) -> String, example: &str) -> Result<f64, String> {
    let known = || units.iter().map(|(unit, _)| *unit).collect::<Vec<_>>().join(", ");
    match split(text) {
        (None, _) => Err(format!("`{text}` is not a quantity; write for example {example}")),
        (Some(_), "") => Err(bare(text.trim())),
        (Some(number), unit) => match units.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => Ok(number * factor),
            None => {
                Err(format!("`{text}` has an unknown unit; write for example {example} (units: {})", known()))
            }
        },
    }
}

/// The error message for a bandwidth without a unit, with both possible readings.
fn bare_bandwidth(text: &str) -> String {
    let number: f64 = text.parse().unwrap_or_default();
    format!(
        "`{text}` has no unit; write \"{text} GB/s\" ({} Gb/s) or \"{text} Gb/s\" ({} GB/s)",
        number * 8.0,
        number / 8.0
    )
}

/// The error message for a time without a unit.
fn bare_time(text: &str) -> String {
    format!("`{text}` has no unit; write for example \"{text} us\" or \"{text} ns\"")
}

impl FromStr for Bandwidth {
    type Err = String;

    fn from_str(text: &str) -> Result<Bandwidth, String> {
        let gb = scaled(text, &BANDWIDTHS, bare_bandwidth, "\"25 GB/s\" or \"200 Gb/s\"")?;
        // Rates are whole bytes per second: a slower one would be rounded by more than a percent.
        match (1e-7..=1e9).contains(&gb) {
            true => Ok(Bandwidth(gb)),
            false => Err(format!(
                "`{text}` is not a possible bandwidth; give 1e-7 GB/s (100 bytes per second) to 1e9 GB/s"
            )),
        }
    }
}

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Latency, String> {
        let us = scaled(text, &TIMES, bare_time, "\"2.7 us\"")?;
        match (0.0..=1e9).contains(&us) {
            true => Ok(Latency(us)),
            false => Err(format!("`{text}` is not a possible time; give 0 or more, at most 1000 s")),
        }
    }
}

/// A serde visitor that reads a quantity from a string; for a number it reports the error of [`FromStr`].
struct Text<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number with its unit, in quotation marks")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        match number.to_string().parse::<T>() {
            Err(without_unit) => Err(E::custom(without_unit)),
            Ok(_) => Err(E::invalid_type(Unexpected::Float(number), &self)),
        }
    }
}

/// Implements `Deserialize` for quantities, which are read from strings.
macro_rules! from_text {
    ($($quantity:ty),*) => {$(
        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Text(std::marker::PhantomData))
            }
        }
    )*};
}

from_text!(Bandwidth, Latency);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bandwidth_in_bits_and_in_bytes() {
        let bytes = |text: &str| text.parse::<Bandwidth>().unwrap().bytes().0;
        for (bits, whole) in [("200 Gb/s", "25 GB/s"), ("200Gbps", "25000 MB/s"), ("1.6 Tb/s", "0.2 TB/s")] {
            assert_eq!(bytes(bits), bytes(whole), "{bits}");
        }
        assert_eq!(bytes("8 Mb/s"), 1_000_000);
        let picos = |text: &str| text.parse::<Latency>().unwrap().picos().0;
        assert_eq!(
            [picos("2.7us"), picos("600 ns"), picos("1 ms"), picos("0 s")],
            [2_700_000, 600_000, 1_000_000_000, 0]
        );
    }

    #[test]
    fn what_is_wrong_with_a_quantity_is_said() {
        let said = |text: &str| text.parse::<Bandwidth>().unwrap_err();
        for (text, what) in [
            ("25", "write \"25 GB/s\" (200 Gb/s) or \"25 Gb/s\" (3.125 GB/s)"),
            ("fast", "is not a quantity; write for example \"25 GB/s\""),
            ("25 GBs", "unknown unit"),
            ("25 gb/s", "unknown unit"),
            ("0 GB/s", "give 1e-7 GB/s"),
            ("-1 GB/s", "give 1e-7 GB/s"),
            ("9.9e-8 GB/s", "give 1e-7 GB/s"),
            ("7e-4 Mb/s", "give 1e-7 GB/s"),
            ("1e300 TB/s", "to 1e9 GB/s"),
            ("", "is not a quantity"),
        ] {
            assert!(said(text).contains(what), "{text}: {}", said(text));
        }
        let said = |text: &str| text.parse::<Latency>().unwrap_err();
        assert_eq!(said("2.7"), "`2.7` has no unit; write for example \"2.7 us\" or \"2.7 ns\"");
        assert!(said("-1 us").contains("is not a possible time; give 0 or more"));
    }
}
