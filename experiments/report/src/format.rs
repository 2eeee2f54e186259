//! Formats numbers for readers.

use crate::sizes::{RankCounts, Size};

/// A count with its noun: `1 rank`, `2 ranks`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The numbers of ranks of several points: `1 rank`, `1,2,16 ranks`.
pub fn counted_list(ranks: impl IntoIterator<Item = u32>) -> String {
    let ranks: Vec<u32> = ranks.into_iter().collect();
    let noun = if ranks == [1] { "rank" } else { "ranks" };
    format!("{} {noun}", RankCounts(ranks))
}

/// `1 GiB`, `64 KiB`, `12 B`.
pub fn bytes(bytes: u64) -> String {
    let text = Size(bytes).to_string();
    match text.strip_suffix(|c: char| c.is_ascii_uppercase()) {
        Some(number) => format!("{number} {}iB", &text[number.len()..]),
        None => format!("{text} B"),
    }
}

/// A size in its unit, with one decimal in KiB and three in MiB and GiB: `12 B`, `435.9 KiB`, `1.067 MiB`.
pub fn rounded_bytes(bytes: u64) -> String {
    match bytes as f64 {
        size if size < 1024.0 => format!("{bytes} B"),
        size if size < 1024.0 * 1024.0 => format!("{:.1} KiB", size / 1024.0),
        size if size < 1024.0 * 1024.0 * 1024.0 => format!("{:.3} MiB", size / 1024.0 / 1024.0),
        size => format!("{:.3} GiB", size / 1024.0 / 1024.0 / 1024.0),
    }
}

/// A time of microseconds in four digits, with the unit that suits it: `4.331 s`, `104.6 ms`, `8.400 us`.
pub fn time(us: f64) -> String {
    if us.is_nan() {
        return "-".into();
    }
    let (value, unit) = match us.abs() {
        size if size >= 999_950.0 => (us / 1e6, "s"),
        size if size >= 999.95 => (us / 1e3, "ms"),
        _ => (us, "us"),
    };
    let digits = match value.abs() {
        0.0 => 0,
        size if size >= 99.995 => 1,
        size if size >= 9.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$} {unit}")
}

/// Samples per second, in three digits at least.
pub fn rate(samples_per_s: f64) -> String {
    match samples_per_s {
        few if few < 1.0 => format!("{few:.4}"),
        few if few < 10.0 => format!("{few:.2}"),
        few if few < 100.0 => format!("{few:.1}"),
        many => format!("{many:.0}"),
    }
}

/// A number of bytes on an axis of powers of two.
pub fn bytes_axis(value: f64) -> String {
    bytes(value.round() as u64)
}

/// A number in about three digits, from 10,000 on in thousands (k), millions (M) or 1e9 (G): `9999`, `12.5k`, `100M`.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e12 => format!("{value:.2e}"),
        size if size >= 1e9 => trimmed(format!("{:.2}", value / 1e9)) + "G",
        size if size >= 1e6 => trimmed(format!("{:.2}", value / 1e6)) + "M",
        size if size >= 1e4 => trimmed(format!("{:.1}", value / 1e3)) + "k",
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        size if size >= 1.0 => trimmed(format!("{value:.2}")),
        size if size >= 0.001 => trimmed(format!("{value:.4}")),
        _ => format!("{value:.1e}"),
    }
}

/// A number of 100 or more in three significant digits, with commas: `151,000`; a smaller one as [`number`].
pub fn grouped(value: f64) -> String {
    if !(100.0..1e15).contains(&value) {
        return number(value);
    }
    let unit = 10f64.powi(value.log10().floor() as i32 - 2);
    let digits = format!("{:.0}", (value / unit).round() * unit);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// A share as a percentage: 0.934 is `93.4 %`, no number `-`.
pub fn percent(share: f64) -> String {
    if share.is_nan() { "-".into() } else { format!("{:.1} %", share * 100.0) }
}

/// What an efficiency above 100 % means, if one of these is above it.
pub fn above_whole(mut efficiencies: impl Iterator<Item = f64>) -> Option<&'static str> {
    const WHOLE: f64 = 1.0005;
    efficiencies.any(|efficiency| efficiency > WHOLE).then_some(
        "efficiency above 100 %: a rank has less work for a sample than in the point that it is compared with, such as a smaller share \
         of the update, or the measurement of that point was disturbed",
    )
}

/// A share on an axis.
pub fn percent_axis(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A text as the name of a file: every character but letters, digits and `_` is a `-`, so that the file stays in its folder.
pub fn file_name(text: &str) -> String {
    const LONGEST: usize = 60;
    let plain = |c: char| if c.is_alphanumeric() || c == '_' { c } else { '-' };
    if text.is_empty() { "-".into() } else { text.chars().take(LONGEST).map(plain).collect() }
}

/// The first eight digits of a hash.
pub fn short(hash: &str) -> String {
    hash.chars().take(8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: rates of 3.9 and 26.6 were printed as 4 and 27, for an efficiency of 86 %.
    #[test]
    fn rates_have_three_digits_or_more() {
        let rates = [0.0312, 3.9, 26.6, 155.4, 2_493_531.0].map(rate);
        assert_eq!(rates, ["0.0312", "3.90", "26.6", "155", "2493531"]);
    }

    /// Regression: a step of 4.33 s took `4331358.8 us`.
    #[test]
    fn a_time_has_the_unit_that_suits_it() {
        let times = [4_331_358.8, 999_960.0, 104_607.9, 999.96, 99.996, 8.4, 0.25, 0.0, -1500.0].map(time);
        assert_eq!(
            times,
            [
                "4.331 s",
                "1.000 s",
                "104.6 ms",
                "1.000 ms",
                "100.0 us",
                "8.400 us",
                "0.250 us",
                "0 us",
                "-1.500 ms"
            ]
        );
    }

    #[test]
    fn one_of_something_has_no_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "rank")), ["0 ranks", "1 rank", "2 ranks"]);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(1 << 30), "1 GiB");
        assert_eq!(bytes(12), "12 B");
        assert_eq!([12, 446_328, 1 << 20].map(rounded_bytes), ["12 B", "435.9 KiB", "1.000 MiB"]);
        assert_eq!(
            [1024.0, 12.34, 1.5, 0.25, 2_500_000.0, 1e8, 45_299.0].map(number),
            ["1024", "12.3", "1.5", "0.25", "2.5M", "100M", "45.3k"]
        );
        assert_eq!([151_234.0, 999.4, 42.0, 1_000_000.0].map(grouped), ["151,000", "999", "42", "1,000,000"]);
        assert_eq!(percent(0.934), "93.4 %");
    }
}
