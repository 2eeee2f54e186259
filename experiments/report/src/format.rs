//! How numbers read.

use crate::sizes::Size;

/// `1 rank`, `2 ranks`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `1 GiB`, `64 KiB`, `12 B`.
pub fn bytes(bytes: u64) -> String {
    let text = Size(bytes).to_string();
    match text.strip_suffix(|c: char| c.is_ascii_uppercase()) {
        Some(number) => format!("{number} {}iB", &text[number.len()..]),
        None => format!("{text} B"),
    }
}

/// A size with three digits or more: `12 B`, `435.9 KiB`, `1.067 MiB`.
pub fn rounded_bytes(bytes: u64) -> String {
    match bytes as f64 {
        size if size < 1024.0 => format!("{bytes} B"),
        size if size < 1024.0 * 1024.0 => format!("{:.1} KiB", size / 1024.0),
        size if size < 1024.0 * 1024.0 * 1024.0 => format!("{:.3} MiB", size / 1024.0 / 1024.0),
        size => format!("{:.3} GiB", size / 1024.0 / 1024.0 / 1024.0),
    }
}

/// A number of bytes on an axis of powers of two.
pub fn bytes_axis(value: f64) -> String {
    bytes(value.round() as u64)
}

/// A whole number without decimals, any other number with three digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1e6 => format!("{:.3}M", value / 1e6).replace(".000", ""),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        size if size >= 1.0 => trimmed(format!("{value:.2}")),
        size if size >= 0.001 => trimmed(format!("{value:.4}")),
        _ => format!("{value:.1e}"),
    }
}

fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// 0.934 as 93.4 %.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A share on an axis.
pub fn percent_axis(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The first eight digits of a hash.
pub fn short(hash: &str) -> String {
    hash.chars().take(8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(1 << 30), "1 GiB");
        assert_eq!(bytes(12), "12 B");
        assert_eq!([12, 446_328, 1 << 20].map(rounded_bytes), ["12 B", "435.9 KiB", "1.000 MiB"]);
        assert_eq!(
            [1024.0, 12.34, 1.5, 0.25, 2_500_000.0].map(number),
            ["1024", "12.3", "1.5", "0.25", "2.500M"]
        );
        assert_eq!(percent(0.934), "93.4 %");
    }
}
