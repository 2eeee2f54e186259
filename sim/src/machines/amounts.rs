//! Parsers for numbers of NICs and their speeds in free text.
//!
//! ```text
//! count   8x400Gb/s   8 x 400G   dual 100GbE   8 ConnectX-7   4 NICs
//! speed   400Gb/s   400 Gbps   400 Gbit/s   100GbE   200G   3.2 Tb/s      or in bytes: 50 GB/s, which is 400 Gb/s
//! ```

/// Words that may follow a number of NICs.
const NIC: &str = "nic hca card adapter rail port connectx cx- bluefield efa slingshot ib infiniband roce hdr ndr xdr pollara";
/// Words for a number of NICs.
const NUMBERS: [(&str, u32); 8] = [
    ("single", 1),
    ("one", 1),
    ("dual", 2),
    ("two", 2),
    ("quad", 4),
    ("four", 4),
    ("eight", 8),
    ("sixteen", 16),
];
/// Units of speed, by their value in Gb/s.
const UNITS: [(&str, f64); 3] =
    [("Gbit/s Gbits/s Gb/s gb/s Gbps gbps GbE GigE Gb G", 1.0), ("Tb/s Tbps", 1000.0), ("GB/s GBps", 8.0)];

/// The number of NICs that a text gives; `None` if it gives none.
pub(super) fn count(text: &str) -> Option<u32> {
    let lower = text.to_lowercase().replace('×', "x");
    let words: Vec<&str> = lower
        .split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | ',' | ';' | ':'))
        .filter(|word| !word.is_empty())
        .collect();
    let sensible = |count: &u32| (1..=1024).contains(count);
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied().unwrap_or_default();
        let named = NUMBERS.iter().find(|(name, _)| name == word).map(|(_, number)| *number);
        let said = match word.split_once('x') {
            Some((digits, _)) => digits.parse().ok(),
            None => word.parse().ok().or(named).filter(|_| {
                let after = if next == "x" { words.get(at + 2).copied().unwrap_or_default() } else { next };
                let speed =
                    (next == "x" || named.is_some()) && after.starts_with(|c: char| c.is_ascii_digit());
                speed || NIC.split(' ').any(|name| after.starts_with(name))
            }),
        };
        if let Some(count) = said.filter(sensible) {
            return Some(count);
        }
    }
    None
}

/// The speed in Gb/s that a text gives, from 1 to 100,000; a number in bits takes precedence over a number in bytes.
pub(super) fn speed(text: &str) -> Option<f64> {
    let all: Vec<(f64, f64)> = numbers(text).collect();
    let bits = all.iter().find(|(_, unit)| *unit != 8.0);
    bits.or(all.first())
        .map(|(number, unit)| number * unit)
        .filter(|gbit_per_s| (1.0..=100_000.0).contains(gbit_per_s))
}

/// The speeds in Gb/s of a text, in order: those in bits, or else those in bytes.
pub(super) fn speeds(text: &str) -> Vec<f64> {
    let all: Vec<(f64, f64)> = numbers(text).collect();
    let in_bytes = all.iter().all(|(_, unit)| *unit == 8.0);
    let kept = all.into_iter().filter(|(_, unit)| in_bytes || *unit != 8.0);
    kept.map(|(number, unit)| number * unit).collect()
}

/// Every number that a unit of speed follows, with the unit's value in Gb/s.
fn numbers(text: &str) -> impl Iterator<Item = (f64, f64)> {
    let starts = text.char_indices().filter(|&(at, c)| {
        c.is_ascii_digit() && !text[..at].ends_with(|c: char| c.is_ascii_digit() || c == '.')
    });
    starts.filter_map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let unit = rest[end..].trim_start_matches([' ', '-']);
        let is = |name: &str| {
            unit.strip_prefix(name)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/'))
        };
        let found = UNITS.iter().find(|(names, _)| names.split(' ').any(is));
        Some((rest[..end].parse().ok()?, found?.1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        for (text, nics, gbit_per_s) in [
            ("8x400Gb/s IB NDR", Some(8), Some(400.0)),
            ("8 x 400 Gbps InfiniBand", Some(8), Some(400.0)),
            ("8×200Gb/s RoCEv2", Some(8), Some(200.0)),
            ("dual 100GbE RoCEv2", Some(2), Some(100.0)),
            ("2x25GbE", Some(2), Some(25.0)),
            ("8 ConnectX-7 NICs, 400G each", Some(8), Some(400.0)),
            ("two 200 Gbit/s HDR HCAs", Some(2), Some(200.0)),
            ("4x Slingshot-11 200 Gb/s (one per GH200)", Some(4), Some(200.0)),
            ("3.2 Tbps EFA", None, Some(3200.0)),
            ("50 GB/s a NIC, 8 NICs", Some(8), Some(400.0)),
            ("one 400 Gb/s-class NIC per GPU (per-GPU plateau 48.9 GB/s)", Some(1), Some(400.0)),
            ("per text \"2 x p5.48xlarge\"", None, None),
            ("H100 80GB, IB", None, None),
            ("EFA", None, None),
        ] {
            assert_eq!((count(text), speed(text)), (nics, gbit_per_s), "{text}");
        }
    }
}
