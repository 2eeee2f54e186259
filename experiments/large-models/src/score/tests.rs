use super::*;
use crate::rows;

/// Rows of one file: GPUs, measured seconds, and whether the row is doubted.
fn rows_of(system: &str, rows: &[(u32, f64, bool)]) -> Vec<TrainingRow> {
    let rows: Vec<String> = rows
        .iter()
        .enumerate()
        .map(|(at, (tp, seconds, suspect))| {
            format!(
                r#"{{"gpus": 64, "sequence_length": 4096, "global_batch": 128, "micro_batch": 1, "tp": {tp}, "pp": {},
                "measured": {{"seconds_per_step": {seconds}}}, "suspect": {suspect}}}"#,
                1 + at % 2
            )
        })
        .collect();
    let text = format!(
        r#"{{"source": "a test", "system": "{system}", "gpu": "H100", "gpus_per_node": 8, "software": "Megatron-LM 2025",
        "model": {{"name": "Llama 2 7B"}}, "rows": [{}]}}"#,
        rows.join(",")
    );
    let file = rows::parse("file", &text).unwrap();
    assert_eq!(file.left_out, []);
    file.rows
}

fn predicted(row: &TrainingRow, step_s: f64) -> PredictedRow<'_> {
    PredictedRow {
        row,
        step_s,
        range80_s: [step_s * 0.9, step_s * 1.1],
        range95_s: [step_s * 0.8, step_s * 1.2],
        memory_gb: 50.0,
        fits: 0.9,
        known: false,
    }
}

#[test]
fn a_quantile_lies_between_two_values_in_proportion() {
    let found = |share| quantile(&[4.0, 1.0, 2.0, 3.0], share);
    assert_eq!([found(0.0), found(0.5), found(0.9), found(1.0)], [1.0, 2.5, 3.7, 4.0].map(Some));
    assert_eq!(quantile(&[], 0.5), None);
}

#[test]
fn every_system_counts_once_and_doubted_or_known_rows_nowhere() {
    let many = rows_of("Alpha", &[(1, 1.0, false), (1, 1.0, false), (1, 1.0, false), (1, 1.0, true)]);
    let one = rows_of("Beta", &[(1, 1.0, false), (1, 1.0, false)]);
    let mut all: Vec<_> = many.iter().map(|row| predicted(row, 1.1)).collect();
    all.extend([predicted(&one[0], 1.5), PredictedRow { known: true, ..predicted(&one[1], 9.0) }]);
    let score = errors(&all, |_| true).unwrap();
    assert_eq!((score.rows, score.systems), (4, 2));
    assert!((score.by_rows.median - 0.1).abs() < 1e-9, "{score:?}");
    assert!((score.by_systems.median - 0.3).abs() < 1e-9, "{score:?}");
    assert_eq!(errors(&all, PredictedRow::is_mixture), None);
}

#[test]
fn pairs_close_together_are_in_no_order() {
    let rows = rows_of("Alpha", &[(1, 1.0, false), (1, 1.04, false), (2, 2.0, false), (4, 3.0, false)]);
    let predictions = [1.0, 2.0, 1.5, 4.0];
    let all: Vec<_> = rows.iter().zip(predictions).map(|(row, step)| predicted(row, step)).collect();
    // Five pairs are apart; 1.04 and 2.0 are predicted the other way round.
    assert_eq!(order(&all, |row| &row.system), Hits { hits: 4, of: 5 });
    assert_eq!(order(&all, |row| row.row), Hits::default());
}

#[test]
fn an_interval_holds_what_lies_inside_of_it() {
    let rows = rows_of("Alpha", &[(1, 1.05, false), (1, 1.15, false), (1, 1.3, false)]);
    let all: Vec<_> = rows.iter().map(|row| predicted(row, 1.0)).collect();
    assert_eq!(coverage(&all).map(|hits| hits.hits), [1, 2]);
}

#[test]
fn memory_counts_jobs_that_failed_and_jobs_that_ran_apart() {
    let mut rows = rows_of("Alpha", &[(1, 1.0, false), (1, 1.0, false), (1, 1.0, false)]);
    rows[0].memory_gb = Some(40.0);
    rows[2].out_of_memory = Some(true);
    let mut all: Vec<_> = rows.iter().map(|row| predicted(row, 1.0)).collect();
    all[1].fits = 0.1;
    let score = memory(&all);
    assert_eq!((score.rows, score.found.hits, score.found.of), (1, 0, 1));
    assert_eq!((score.refused.hits, score.refused.of), (1, 2));
    assert!((score.error.unwrap().median - 0.25).abs() < 1e-9);
}

#[test]
fn regret_is_what_the_chosen_layout_costs() {
    let rows = rows_of("Alpha", &[(1, 1.2, false), (2, 1.0, false), (4, 1.5, false), (8, 2.0, false)]);
    // The choice is tp 1 (1.2 s); the best of the first three is tp 2 (1.0 s).
    let predictions = [0.5, 0.7, 0.6, 0.9];
    let all: Vec<_> = rows.iter().zip(predictions).map(|(row, step)| predicted(row, step)).collect();
    let found = regret(&all).unwrap();
    assert_eq!(found.groups, 1);
    assert!((found.first[0] - 0.2).abs() < 1e-9 && found.best_of_three[0].abs() < 1e-9, "{found:?}");
    assert_eq!(regret(&all[..2]), None);
}
