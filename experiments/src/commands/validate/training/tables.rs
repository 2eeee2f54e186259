//! The tables of predicted steps: by system, in all, and why rows were left out.

use allfold_cli::columns::columns;
use allfold_large_models::rows::LeftOutRow;
use allfold_large_models::score::{self, ErrorScore, Hits, Percentiles, PredictedRow};
use allfold_report::format::{counted, percent, time};
use std::collections::BTreeMap;

fn pair(found: Percentiles) -> String {
    format!("{} / {}", percent(found.median), percent(found.p90))
}

fn hits(found: Hits) -> String {
    found.share().map_or("-".into(), |share| format!("{} of {}", percent(share), found.of))
}

/// Everything that is printed.
pub(super) fn report(found: &[PredictedRow<'_>], left_out: &[LeftOutRow], every_row: bool) -> String {
    let mut lines =
        vec![format!("{} of training predicted, {} left out", counted(found.len(), "row"), left_out.len())];
    if every_row {
        lines.push(columns(&rows(found)));
    }
    lines.push(String::new());
    lines.push(columns(&systems(found)));
    lines.push(String::new());
    lines.push(columns(&scores(found)));
    if !left_out.is_empty() {
        lines.push("\nrows left out, and why:".into());
        lines.push(columns(&reasons(left_out)));
    }
    lines.join("\n")
}

fn rows(found: &[PredictedRow<'_>]) -> Vec<Vec<String>> {
    let head = ["run", "row", "measured", "predicted", "80 %", "error"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for row in found.iter().filter(|row| row.row.step_s.is_some()) {
        let measured = row.row.step_s.unwrap_or(row.step_s);
        let note = match (row.row.suspect, row.known) {
            (true, _) => " (doubted)",
            (_, true) => " (known)",
            _ => "",
        };
        let [low, high] = row.range80_s.map(|seconds| time(seconds * 1e6));
        lines.push(vec![
            row.row.run.clone(),
            row.row.row.to_string(),
            time(measured * 1e6),
            time(row.step_s * 1e6),
            format!("{low} to {high}"),
            format!("{:+.1} %{note}", 100.0 * (row.step_s / measured - 1.0)),
        ]);
    }
    lines
}

fn systems(found: &[PredictedRow<'_>]) -> Vec<Vec<String>> {
    let mut names: Vec<&str> = found.iter().map(|row| &*row.row.system).collect();
    names.sort_unstable();
    names.dedup();
    let mut lines = vec![["system", "rows", "median", "p90", "in order"].map(String::from).to_vec()];
    for name in names {
        let of: Vec<PredictedRow<'_>> = found.iter().filter(|row| row.row.system == name).cloned().collect();
        let Some(ErrorScore { rows, by_rows, .. }) = score::errors(&of, |_| true) else { continue };
        let order = score::order(&of, |row| &row.system);
        let [median, p90] = [by_rows.median, by_rows.p90].map(percent);
        lines.push(vec![
            name.into(),
            rows.to_string(),
            median,
            p90,
            order.share().map_or("-".into(), percent),
        ]);
    }
    lines
}

fn scores(found: &[PredictedRow<'_>]) -> Vec<Vec<String>> {
    let mut lines = vec![["score", "median / 90th percentile, or share"].map(String::from).to_vec()];
    let mut add = |name: String, value: String| lines.push(vec![name, value]);
    let of = |kind: &str, score: Option<ErrorScore>| {
        score.map(|score| {
            (format!("{kind}: {} of {}", counted(score.rows, "row"), counted(score.systems, "system")), score)
        })
    };
    let kinds = [
        of("error, all", score::errors(found, |_| true)),
        of("error, dense", score::errors(found, |row| !row.is_mixture())),
        of("error, experts", score::errors(found, |row| row.is_mixture())),
    ];
    for (name, score) in kinds.into_iter().flatten() {
        add(name, pair(score.by_rows));
        add("  each system once".into(), pair(score.by_systems));
    }
    add("pairs in order, on a system".into(), hits(score::order(found, |row| &row.system)));
    add(
        "pairs in order, of a model on a system".into(),
        hits(score::order(found, |row| (&row.system, &row.job.model.name))),
    );
    let [inside80, inside95] = score::coverage(found).map(hits);
    add("inside of the 80 % interval".into(), inside80);
    add("inside of the 95 % interval".into(), inside95);
    if let Some(regret) = score::regret(found) {
        let value = |[mean, median]: [f64; 2]| format!("mean {}, median {}", percent(mean), percent(median));
        add(format!("regret of the first layout: {}", counted(regret.groups, "group")), value(regret.first));
        add("regret of the best of the first three".into(), value(regret.best_of_three));
    }
    let memory = score::memory(found);
    if let Some(error) = memory.error {
        add(format!("memory: {}", counted(memory.rows, "row")), pair(error));
    }
    add("out of memory, and predicted so".into(), hits(memory.found));
    add("ran, and predicted not to fit".into(), hits(memory.refused));
    lines
}

fn reasons(left_out: &[LeftOutRow]) -> Vec<Vec<String>> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for row in left_out {
        let why = match (row.wrong, row.suspect) {
            (_, true) => "doubted by its collector, and incomplete or contradictory".into(),
            (true, false) => "wrong: see above".into(),
            (false, false) => row.why.clone(),
        };
        *counts.entry(why).or_default() += 1;
    }
    let mut lines = vec![["rows", "reason"].map(String::from).to_vec()];
    lines.extend(counts.into_iter().map(|(why, count)| vec![count.to_string(), why]));
    lines
}
