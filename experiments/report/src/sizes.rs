//! Sizes, sweeps of sizes, and sets of rank counts, as they are written on the command line.
//!
//! ```text
//! 8   64K   1M   1G          powers of two, as nccl-tests reads them
//! 8   1..64   1,2,4..8       rank counts; both ends of a range belong to it
//! ```

use std::fmt;
use std::str::FromStr;

const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// A number of bytes read from text: `8`, `64K`, `1M`, `1G` (powers of two).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let wrong = || format!("`{text}` is no size; write 8, 64K, 1M or 1G");
        let shift = match unit.to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            unit => {
                let letter = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(unit);
                UNITS.iter().find(|(name, _)| letter == name.to_string()).map(|u| u.1).ok_or_else(wrong)?
            }
        };
        if digits.is_empty() {
            return Err(wrong());
        }
        let overflow = || format!("`{text}` overflows 64 bits; the largest size is below 16384P");
        let value: u64 = digits.parse().map_err(|_| overflow())?;
        value.checked_mul(1 << shift).map(Size).ok_or_else(overflow)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().rev().find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift)) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A sweep of sizes: from the least to the greatest, times a factor or plus an increment each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The first size, in bytes.
    pub least: Size,
    /// The size that no size of the sweep exceeds.
    pub greatest: Size,
    /// How each size follows from the previous one.
    pub growth: Growth,
}

/// How a sweep grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Times this; 2 or more.
    Factor(u64),
    /// Plus this many bytes; 1 or more.
    Step(Size),
}

impl Sweep {
    /// The most sizes that one sweep may have.
    const MOST: usize = 10_000;

    /// Every size in order. An error says what is wrong with the sweep.
    pub fn sizes(&self) -> Result<Vec<u64>, String> {
        let Sweep { least, greatest, growth } = *self;
        if least > greatest {
            return Err(format!("-b {least} is more than -e {greatest}; the sweep goes from -b up to -e"));
        }
        match growth {
            Growth::Factor(0 | 1) if least < greatest => {
                return Err("-f must be 2 or more: each size is the one before times -f".into());
            }
            Growth::Step(Size(0)) if least < greatest => {
                return Err("-i must be 1 or more: each size is the one before plus -i".into());
            }
            _ => {}
        }
        let mut sizes = vec![least.0];
        let mut at = least.0;
        while at < greatest.0 {
            let next = match growth {
                Growth::Factor(factor) => at.max(1).checked_mul(factor),
                Growth::Step(step) => at.checked_add(step.0),
            };
            match next {
                Some(next) if next <= greatest.0 => at = next,
                _ => break,
            }
            sizes.push(at);
            if sizes.len() > Self::MOST {
                return Err(format!(
                    "the sweep has more than {} sizes; take a greater -i or use -f",
                    Self::MOST
                ));
            }
        }
        Ok(sizes)
    }
}

/// A set of rank counts, rising: `8`, `1..64` (both ends belong to it), `1,2,4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCounts(pub Vec<u32>);

impl RankCounts {
    /// The largest rank count.
    pub fn greatest(&self) -> u32 {
        self.0.last().copied().unwrap_or(1)
    }
}

impl FromStr for RankCounts {
    type Err = String;

    fn from_str(text: &str) -> Result<RankCounts, String> {
        let mut counts = Vec::new();
        for part in text.split(',') {
            let (from, to) = part.split_once("..").unwrap_or((part, part));
            let (from, to) = (rank_count(from.trim())?, rank_count(to.trim_start_matches('=').trim())?);
            if from > to {
                return Err(format!("`{part}` runs backwards; write the smaller count first"));
            }
            counts.extend(from..=to);
        }
        counts.sort_unstable();
        counts.dedup();
        Ok(RankCounts(counts))
    }
}

impl fmt::Display for RankCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        for (i, run) in runs.enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [one, two] => write!(f, "{comma}{one},{two}")?,
                [first, .., last] => write!(f, "{comma}{first}..{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// The most ranks that a flag or a record may name.
pub const MOST_RANKS: u32 = 1 << 20;

/// Reads a number of ranks, for clap: 1 to [`MOST_RANKS`]. Refuses any other text.
pub fn rank_count(text: &str) -> Result<u32, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("zero ranks; a group has 1 or more".into()),
        Ok(ranks) => u32::try_from(ranks)
            .ok()
            .filter(|ranks| *ranks <= MOST_RANKS)
            .ok_or_else(|| format!("{ranks} ranks are too many; the most are {}", MOST_RANKS)),
        Err(_) => {
            Err(format!("`{text}` is not a number of ranks; write a whole number, 1 to {}", MOST_RANKS))
        }
    }
}

/// The most ranks for which a command proves an algorithm: the work grows with the square of the number, or with its cube.
pub const MOST_PROVED: u32 = 1024;

/// Reads a number of ranks for a proof, for clap: 1 to [`MOST_PROVED`].
pub fn proved_count(text: &str) -> Result<u32, String> {
    match rank_count(text)? {
        ranks if ranks <= MOST_PROVED => Ok(ranks),
        ranks => Err(format!("{ranks} ranks are too many for a proof; the most are {MOST_PROVED}")),
    }
}

/// Reads rank counts for proofs, for clap: 1 to [`MOST_PROVED`].
pub fn proved_counts(text: &str) -> Result<RankCounts, String> {
    let counts: RankCounts = text.parse()?;
    proved_count(&counts.greatest().to_string()).map(|_| counts)
}

/// Reads a size of 1 byte or more, for clap.
pub fn some_bytes(text: &str) -> Result<Size, String> {
    match text.parse()? {
        Size(0) => Err("a size of 0 bytes; give 1 byte or more".into()),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> Result<u64, String> {
        text.parse::<Size>().map(|s| s.0)
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("64k"), Ok(65_536));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        assert_eq!(Size(3 << 20).to_string(), "3M");
        assert_eq!(Size(0).to_string(), "0");
    }

    #[test]
    fn wrong_sizes_say_what_would_be_right() {
        for text in ["", "K", "-8", "8X", "1.5M", "eight"] {
            assert!(size(text).unwrap_err().contains("write 8, 64K"), "{text}");
        }
        assert!(size("99999999999999999999").unwrap_err().contains("overflows"));
        assert!(size("16384P").unwrap_err().contains("overflows"));
    }

    #[test]
    fn a_sweep_grows_by_factor_or_step_and_stops() {
        let sweep = |least, greatest, growth| Sweep { least: Size(least), greatest: Size(greatest), growth };
        assert_eq!(sweep(8, 64, Growth::Factor(2)).sizes(), Ok(vec![8, 16, 32, 64]));
        assert_eq!(sweep(8, 63, Growth::Factor(2)).sizes(), Ok(vec![8, 16, 32]));
        assert_eq!(sweep(0, 4, Growth::Step(Size(2))).sizes(), Ok(vec![0, 2, 4]));
        assert_eq!(sweep(0, 4, Growth::Factor(2)).sizes(), Ok(vec![0, 2, 4]));
        assert_eq!(sweep(u64::MAX / 2 + 1, u64::MAX, Growth::Factor(2)).sizes().map(|s| s.len()), Ok(1));
        assert!(sweep(8, 4, Growth::Factor(2)).sizes().is_err());
        assert!(sweep(8, 16, Growth::Factor(1)).sizes().is_err());
        assert!(sweep(8, 16, Growth::Step(Size(0))).sizes().is_err());
        assert!(sweep(0, u64::MAX, Growth::Step(Size(1))).sizes().is_err());
    }

    #[test]
    fn rank_counts_are_numbers_ranges_and_lists() {
        let read = |text: &str| text.parse::<RankCounts>().map(|r| r.0);
        assert_eq!(read("8"), Ok(vec![8]));
        assert_eq!(read("1..4"), Ok(vec![1, 2, 3, 4]));
        assert_eq!(read("8,1..3,2"), Ok(vec![1, 2, 3, 8]));
        assert!(read("0..4").unwrap_err().contains("zero ranks"));
        assert!(read("4..1").unwrap_err().contains("backwards"));
        assert!(read("x").is_err() && read("").is_err() && read("1,,2").is_err());
        assert!(read("2147483648").unwrap_err().contains("the most are 1048576"));
        assert!(read("1..18446744073709551615").unwrap_err().contains("the most are 1048576"));
        assert_eq!("1..3,8".parse::<RankCounts>().unwrap().to_string(), "1..3,8");
    }
}
