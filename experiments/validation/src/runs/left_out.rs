//! What of a run does not count, by reason.

use std::collections::BTreeSet;
use std::fmt;

/// The rows of a run that are neither scored nor fitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowsLeftOut {
    /// Rows in which the test found wrong results, each by its bytes.
    pub wrong: Vec<u64>,
    /// The number of rows of 0 bytes, in which nothing is sent.
    pub zero: usize,
    /// Rows that are cut off or broken by other lines, each by its line.
    pub broken: Vec<usize>,
    /// Rows that contradict themselves, each with its reason.
    pub contradicting: Vec<String>,
}

impl RowsLeftOut {
    /// Whether every row counts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.wrong.len() + self.zero + self.broken.len() + self.contradicting.len()
    }
}

impl fmt::Display for RowsLeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = |count: usize, what: &str| {
            let plural = if count == 1 { "" } else { "s" };
            (count > 0).then(|| format!("{count} row{plural} {what}"))
        };
        let sizes: BTreeSet<&u64> = self.wrong.iter().collect();
        let sizes: Vec<String> = sizes.into_iter().take(8).map(u64::to_string).collect();
        let wrong = format!("with wrong results (bytes: {})", sizes.join(", "));
        let broken = format!("cut off or broken (the first: line {})", self.broken.first().unwrap_or(&0));
        let first = self.contradicting.first().map_or("", |first| first);
        let contradicting = format!("whose figures contradict each other (the first: {first})");
        let reasons = [
            rows(self.wrong.len(), &wrong),
            rows(self.zero, "of 0 bytes"),
            rows(self.broken.len(), &broken),
            rows(self.contradicting.len(), &contradicting),
        ];
        f.write_str(&reasons.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}
