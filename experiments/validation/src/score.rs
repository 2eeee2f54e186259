//! The score of predictions: by what factor a time is wrong, either way.
//!
//! ```text
//! factor = max(predicted / measured, measured / predicted)      1 is right, 2 is half or twice
//! ```
//!
//! A relative error of an underprediction is at most 100 %, and would favour a model whose predictions are always low.

/// Sizes are scored in these bands, in bytes: from, below, and the name.
pub const BANDS: [(u64, u64, &str); 4] = [
    (0, 64 << 10, "< 64 KiB"),
    (64 << 10, (1 << 20) + 1, "64 KiB - 1 MiB"),
    ((1 << 20) + 1, (16 << 20) + 1, "1 - 16 MiB"),
    ((16 << 20) + 1, u64::MAX, "> 16 MiB"),
];

/// The band of a size.
pub fn band(bytes: u64) -> usize {
    BANDS.iter().position(|&(from, below, _)| (from..below).contains(&bytes)).unwrap_or(BANDS.len() - 1)
}

/// The factor by which a prediction is wrong, in either direction; 1 or more.
pub fn factor(predicted: f64, measured: f64) -> f64 {
    (predicted / measured).max(measured / predicted)
}

/// The lower median; `None` of none.
pub fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied()
}

/// A prediction that is part of the score.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The name of the cluster.
    pub system: String,
    /// The size of the call in bytes.
    pub bytes: u64,
    /// The factor by which the prediction is wrong.
    pub factor: f64,
}

/// Median and 90th percentile of factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The number of rows.
    pub rows: usize,
    /// The number of systems.
    pub systems: usize,
    /// Quantiles over rows: every row has the same weight.
    pub by_rows: Quantiles,
    /// Quantiles in which every system has the same weight, whatever its number of rows.
    pub by_systems: Quantiles,
}

/// The median and the 90th percentile of factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    /// Half of the factors are at most this.
    pub median: f64,
    /// The 90th percentile.
    pub p90: f64,
}

/// The score of some rows; `None` of none.
pub fn score<'a>(rows: impl Iterator<Item = &'a Scored>) -> Option<Score> {
    let rows: Vec<&Scored> = rows.collect();
    let mut systems: std::collections::BTreeMap<&str, f64> = std::collections::BTreeMap::new();
    rows.iter().for_each(|row| *systems.entry(&row.system).or_default() += 1.0);
    let even: Vec<(f64, f64)> = rows.iter().map(|row| (row.factor, 1.0)).collect();
    let shared: Vec<(f64, f64)> = rows
        .iter()
        .map(|row| (row.factor, 1.0 / systems.get(&*row.system).copied().unwrap_or(1.0)))
        .collect();
    Some(Score {
        rows: rows.len(),
        systems: systems.len(),
        by_rows: quantiles(even)?,
        by_systems: quantiles(shared)?,
    })
}

fn quantiles(mut weighed: Vec<(f64, f64)>) -> Option<Quantiles> {
    weighed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = weighed.iter().map(|(_, weight)| weight).sum();
    let at = |share: f64| {
        let mut sum = 0.0;
        let found = weighed.iter().find(|(_, weight)| {
            sum += weight;
            sum >= share * all - 1e-9
        });
        found.or(weighed.last()).map(|(factor, _)| *factor)
    };
    Some(Quantiles { median: at(0.5)?, p90: at(0.9)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, factor: f64) -> Scored {
        Scored { system: system.into(), bytes: 8, factor }
    }

    #[test]
    fn a_factor_is_the_same_for_half_and_twice() {
        assert_eq!((factor(1.0, 2.0), factor(2.0, 1.0), factor(3.0, 3.0)), (2.0, 2.0, 1.0));
    }

    #[test]
    fn sizes_fall_into_bands_by_their_upper_ends() {
        let mib = 1u64 << 20;
        let found = [8, 65_535, 65_536, mib, mib + 4, 16 * mib, 16 * mib + 8].map(band);
        assert_eq!(found, [0, 0, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn a_system_with_many_rows_counts_once() {
        let rows: Vec<Scored> =
            (0..9).map(|_| row("many", 1.1)).chain([row("a", 2.0), row("b", 3.0)]).collect();
        let found = score(rows.iter()).unwrap();
        assert_eq!((found.rows, found.systems), (11, 3));
        assert_eq!((found.by_rows.median, found.by_rows.p90), (1.1, 2.0));
        assert_eq!((found.by_systems.median, found.by_systems.p90), (2.0, 3.0));
        assert_eq!(score([].iter()), None);
    }
}
