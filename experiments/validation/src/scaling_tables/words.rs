//! The meaning of the words in published tables.

use allfold_networks::workloads::Precision;
use std::collections::BTreeMap;

/// The machine that a published title or system names, such as `NVIDIA DGX A100 (8x A100 80GB)` or `dgx2h`.
pub(super) fn machine(text: &str) -> Option<String> {
    let flat: String = text.to_lowercase().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let known = [
        ("dgxa100", "dgx-a100"),
        ("dgxh100", "hgx-h100"),
        ("dgxh200", "hgx-h200"),
        ("dgxb200", "b200"),
        ("dgx2", "dgx2"),
        ("dgx1", "dgx1-v100"),
        ("8xa100", "dgx-a100"),
        ("8xh100", "hgx-h100"),
        ("8xv100", "dgx1-v100"),
        ("16xv100", "dgx2"),
    ];
    known.into_iter().find(|(words, _)| flat.contains(words)).map(|(_, name)| name.into())
}

/// The precision in which a column was measured.
pub(super) fn precision(column: &str) -> Precision {
    let lower = column.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    match () {
        () if has(&["tf32"]) => Precision::Tf32,
        () if has(&["fp32"]) => Precision::F32,
        // Mixed precision, AMP, BF16, FP16; MLPerf's runs as well.
        () => Precision::Half,
    }
}

/// Whether a key of `other` is a result, not a setting.
pub(super) fn is_result(key: &str) -> bool {
    let lower = key.to_lowercase();
    lower.contains("scaling") || lower.contains("speedup") || lower.contains("speed-up")
}

/// One of the numbers in a text such as `128 (FP32) / 256 (AMP)` or `88 and 176`: the last for half precision, otherwise the
/// first.
fn number(text: &str, precision: Precision) -> Option<u32> {
    let cleaned = text.replace(',', if text.contains(", ") { " " } else { "" });
    let mut numbers = Vec::new();
    for word in cleaned.split(|c: char| c.is_whitespace() || c == '/') {
        let digits = word.trim_end_matches(['k', 'K']);
        let scale = if digits.len() < word.len() { 1000 } else { 1 };
        if let Ok(number) = digits.parse::<u32>() {
            numbers.push(number.saturating_mul(scale));
        }
    }
    match precision {
        Precision::Half => numbers.last().copied(),
        _ => numbers.first().copied(),
    }
}

/// Samples per GPU and step.
pub(super) fn batch(other: &BTreeMap<String, String>, precision: Precision) -> Option<u32> {
    let key = other.iter().find(|(key, _)| key.to_lowercase().contains("batch"));
    key.and_then(|(_, value)| number(value, precision)).filter(|batch| *batch > 0)
}

/// Whether a column counts tokens or frames while the batch, by its size, counts sentences. The time of a step is then unknown.
pub(super) fn other_unit(column: &str, batch: Option<u32>) -> bool {
    let lower = column.to_lowercase();
    (lower.contains("tok") || lower.contains("mels")) && batch.is_none_or(|batch| batch < 4096)
}

/// The number of batches between two exchanges.
pub(super) fn accumulation(other: &BTreeMap<String, String>, precision: Precision) -> u32 {
    let key = other.iter().find(|(key, _)| key.to_lowercase().contains("accumulation"));
    key.and_then(|(_, value)| number(value, precision)).unwrap_or(1).clamp(1, 1 << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_with_their_precision() {
        for (text, first, second) in [
            ("128 (FP32) / 256 (AMP)", 128, 256),
            ("24, 40", 24, 40),
            ("88 and 176", 88, 176),
            ("1,048,576", 1_048_576, 1_048_576),
            ("\t32\t", 32, 32),
            ("10240/5120", 10_240, 5_120),
            ("64k", 64_000, 64_000),
        ] {
            assert_eq!(number(text, Precision::F32), Some(first), "{text}");
            assert_eq!(number(text, Precision::Half), Some(second), "{text}");
        }
    }

    #[test]
    fn tokens_a_second_are_no_sentences_a_step() {
        assert!(other_unit("Throughput - TF32 (tok/s)", Some(128)));
        assert!(!other_unit("Throughput - TF32 (tok/s)", Some(10_240)) && !other_unit("img/s", Some(128)));
    }

    #[test]
    fn machines_by_their_titles() {
        for (text, name) in [
            ("Training performance: NVIDIA DGX A100 (8x A100 80GB)", Some("dgx-a100")),
            ("Training performance: NVIDIA DGX-1 32GB (8x V100 32GB)", Some("dgx1-v100")),
            ("Training throughput: NVIDIA DGX-2H (16x V100 32GB)", Some("dgx2")),
            ("dgx2h", Some("dgx2")),
            ("Training performance: NVIDIA A100 (8x A100 80GB)", Some("dgx-a100")),
            ("a farm of TPUs", None),
        ] {
            assert_eq!(machine(text).as_deref(), name, "{text}");
        }
    }
}
