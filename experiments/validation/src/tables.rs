//! Scores and residuals as tables of words: by run, by system, by band of sizes.

use crate::predict::Predictor;
use crate::prepare::Prepared;
use crate::repeatability::RunPair;
use crate::score::{self, BANDS, Scored, band, score};
use allfold_report::records::{TimeInterval, Validated};
use std::collections::BTreeMap;

/// A table as lines of cells; the first line is the head.
pub type TextTable = Vec<Vec<String>>;

/// The names of these columns, then those of the bands.
pub fn head(first: &[&str]) -> Vec<String> {
    first.iter().copied().chain(BANDS.iter().map(|(.., name)| *name)).map(String::from).collect()
}

/// The median factor of some rows in every band.
pub fn medians(rows: &[&Validated]) -> impl Iterator<Item = String> {
    (0..BANDS.len()).map(|at| {
        let factors = rows.iter().filter(|row| band(row.bytes) == at).map(|row| row.error_factor);
        number(score::median(factors.collect()))
    })
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.2}"))
}

/// One line for every system: predicted over measured time as a geometric mean, and the 90th percentile of the factor.
pub fn by_system(rows: &[&Validated]) -> TextTable {
    let mut systems: BTreeMap<&str, Vec<&Validated>> = BTreeMap::new();
    rows.iter().for_each(|row| systems.entry(&row.system).or_default().push(row));
    let mut lines = vec![head(&["system", "rows"])];
    for (system, rows) in systems {
        let mut line = vec![system.to_string(), rows.len().to_string()];
        for at in 0..BANDS.len() {
            let of: Vec<&&Validated> = rows.iter().filter(|row| band(row.bytes) == at).collect();
            let logs: f64 = of.iter().map(|row| (row.predicted_us / row.measured_us).ln()).sum();
            let scored: Vec<Scored> = of.iter().map(|row| scored(row)).collect();
            line.push(score(scored.iter()).map_or("-".into(), |score| {
                format!("{:.2}, {:.2}", (logs / of.len() as f64).exp(), score.by_rows.p90)
            }));
        }
        lines.push(line);
    }
    lines
}

/// How the hardware of the runs was understood, and what was assumed. Runs with the same description share one entry.
pub fn hardware<'a>(runs: impl Iterator<Item = &'a Prepared>) -> Vec<String> {
    let mut alike: Vec<(&Prepared, usize)> = Vec::new();
    for run in runs {
        let machine = &run.setting.machine;
        let same = alike.iter_mut().find(|(other, _)| {
            let other = &other.setting.machine;
            other.understood == machine.understood
                && other.assumed == machine.assumed
                && (other.nodes, other.devices) == (machine.nodes, machine.devices)
        });
        match same {
            Some((_, count)) => *count += 1,
            None => alike.push((run, 1)),
        }
    }
    let mut lines = Vec::new();
    for (run, count) in alike {
        let machine = &run.setting.machine;
        let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let (nodes, devices) = (machine.nodes, machine.devices);
        lines.push(format!("hardware of {}{more}: {nodes} x {devices} GPUs", run.name));
        lines.extend(machine.understood.iter().map(|line| format!("  understood: {line}")));
        lines.extend(machine.assumed.iter().map(|line| format!("  assumed: {line}")));
    }
    lines
}

/// The differences between runs of the same system, collective and shape: the median and the largest factor.
pub fn said_twice(pairs: &[RunPair<'_>]) -> TextTable {
    let mut lines = vec![head(&["system", "run", "and"])];
    for pair in pairs {
        let mut line = vec![pair.system.to_string(), pair.runs.0.to_string(), pair.runs.1.to_string()];
        line.extend((0..BANDS.len()).map(|at| match (pair.median(at), pair.most(at)) {
            (Some(median), Some(most)) => format!("{median:.2}, {most:.2}"),
            _ => "-".into(),
        }));
        lines.push(line);
    }
    lines
}

/// Scores are shown by numbers of nodes; those in `published_scores` are of up to 10 nodes.
const GROUPS: [(u32, u32, &str); 3] = [(0, 10, "up to 10"), (11, 64, "11 to 64"), (65, u32::MAX, "above 64")];

/// The score of every predictor, over the rows that took no part in the fit.
pub fn scores(predictors: &[Predictor], found: &[Validated]) -> TextTable {
    let names =
        ["predictor", "nodes", "band", "rows", "systems", "median", "p90", "by systems: median", "p90"];
    let mut lines = vec![names.map(String::from).to_vec()];
    for predictor in predictors {
        for (least, most, nodes) in GROUPS {
            for (at, (.., name)) in BANDS.iter().enumerate() {
                let rows = found.iter().filter(|row| !row.fitted && row.predictor == predictor.name());
                let rows = rows.filter(|row| (least..=most).contains(&row.nodes) && band(row.bytes) == at);
                let rows: Vec<Scored> = rows.map(scored).collect();
                let Some(score) = score(rows.iter()) else { continue };
                let mut line = vec![predictor.name().into(), nodes.into(), (*name).into()];
                line.extend([score.rows.to_string(), score.systems.to_string()]);
                for quantile in [score.by_rows, score.by_systems] {
                    line.extend([format!("{:.2}", quantile.median), format!("{:.2}", quantile.p90)]);
                }
                lines.push(line);
            }
        }
    }
    lines
}

/// The share of rows whose measured time is inside the intervals, by predictor and band, over the rows that took no part in the fit.
pub fn coverage(predictors: &[Predictor], found: &[Validated]) -> TextTable {
    let names = ["predictor", "band", "rows", "80 %", "95 %", "median width of 80 %"];
    let mut lines = vec![names.map(String::from).to_vec()];
    for predictor in predictors {
        for (at, (.., name)) in BANDS.iter().enumerate() {
            let rows = found.iter().filter(|row| !row.fitted && row.predictor == predictor.name());
            let rows: Vec<(f64, TimeInterval)> = rows
                .filter(|row| band(row.bytes) == at)
                .filter_map(|row| Some((row.measured_us, row.interval?)))
                .collect();
            let share = |inside: &dyn Fn(&(f64, TimeInterval)) -> bool| {
                100.0 * rows.iter().filter(|row| inside(row)).count() as f64 / rows.len() as f64
            };
            let within80 = share(&|(us, ends)| (ends.low_us..=ends.high_us).contains(us));
            let within95 = share(&|(us, ends)| (ends.low95_us..=ends.high95_us).contains(us));
            let width =
                score::median(rows.iter().map(|(_, ends)| (ends.high_us / ends.low_us).sqrt()).collect());
            let Some(width) = width else { continue };
            lines.push(vec![
                predictor.name().into(),
                (*name).into(),
                rows.len().to_string(),
                format!("{within80:.0} %"),
                format!("{within95:.0} %"),
                format!("x {width:.2}"),
            ]);
        }
    }
    lines
}

/// The part of a record that the score uses.
pub fn scored(row: &Validated) -> Scored {
    Scored { system: row.system.clone(), bytes: row.bytes, factor: row.error_factor }
}
