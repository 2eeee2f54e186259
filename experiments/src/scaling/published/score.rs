//! The errors of predictions of published figures: medians, and the errors in rising order.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output;
use allfold_report::plots::{Axis, Curves, Ideal, Origin, Point, Series};
use std::path::Path;

/// The error of a row, and what decides the groups that it counts in.
pub struct RowError {
    /// Whether the network classifies, detects or segments images.
    pub vision: bool,
    /// Whether the network is ResNet-50.
    pub resnet50: bool,
    /// The number of GPUs.
    pub ranks: u32,
    /// |predicted / published - 1|.
    pub error: f64,
}

/// Median and 90th percentile of the error: a line for each of five groups of rows that has a row, below the names of the columns.
pub fn scores(rows: &[RowError]) -> Vec<Vec<String>> {
    let mut lines =
        vec![["rows", "count", "median error (%)", "90th percentile (%)"].map(String::from).to_vec()];
    type Pick = fn(&RowError) -> bool;
    let groups: [(&str, Pick); 5] = [
        ("ResNet-50, 8 GPUs", |row| row.resnet50 && row.ranks == 8),
        ("vision, 8 GPUs", |row| row.vision && row.ranks == 8),
        ("vision, all", |row| row.vision),
        ("other, all", |row| !row.vision),
        ("all", |_| true),
    ];
    for (name, pick) in groups {
        let mut errors: Vec<f64> = rows.iter().filter(|row| pick(row)).map(|row| row.error).collect();
        if let Some((median, high)) = quantiles(&mut errors) {
            let figures =
                [errors.len().to_string(), format!("{:.1}", 100.0 * median), format!("{:.1}", 100.0 * high)];
            lines.push([vec![name.to_string()], figures.to_vec()].concat());
        }
    }
    lines
}

/// Median and 90th percentile; `None` if there are no values.
pub fn quantiles(values: &mut [f64]) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values.get(((values.len() as f64 - 1.0) * share).round() as usize).copied();
    Some((at(0.5)?, at(0.9)?))
}

/// Draws the errors of all rows in rising order: the share of the rows that is predicted within each error.
pub fn plot(rows: &[RowError], path: &Path) -> CommandResult {
    let sorted = |name: &str, vision: bool| {
        let mut errors: Vec<f64> =
            rows.iter().filter(|row| row.vision == vision).map(|row| row.error).collect();
        errors.sort_by(f64::total_cmp);
        let share = 100.0 / errors.len().max(1) as f64;
        let point =
            |(at, error): (usize, &f64)| Point { x: (at + 1) as f64 * share, y: 100.0 * error, error: 0.0 };
        Series {
            name: name.into(),
            origin: Origin::Simulated,
            points: errors.iter().enumerate().map(point).collect(),
        }
    };
    let percent = |value: f64| format!("{value:.0}");
    let curves = Curves {
        label: "Errors of predicted training throughput, in rising order".into(),
        x: Axis { label: "rows predicted at least as well (%)", log: None, format: percent },
        y: Axis { label: "error of throughput (%)", log: None, format: percent },
        series: [sorted("vision", true), sorted("other", false)]
            .into_iter()
            .filter(|s| !s.points.is_empty())
            .collect(),
        ideal: Some(Ideal { name: "5 %".into(), points: vec![(0.0, 5.0), (100.0, 5.0)] }),
    };
    let figure = curves.draw().map_err(CommandError::run)?;
    output::replace(
        path,
        figure.file("Published training throughput, predicted from one GPU's row: errors").as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        assert_eq!(quantiles(&mut [3.0, 1.0, 2.0]), Some((2.0, 3.0)));
        assert_eq!(quantiles(&mut []), None);
    }
}
