use super::*;
use crate::fixtures::published;
use crate::rows::parse;
use crate::score;

/// Rows of Llama 2 7B on two systems: seconds of a step for tp 1, 2 and 4.
fn rows_of(system: &str, seconds: [f64; 3]) -> Vec<TrainingRow> {
    let row = |tp: u32, seconds: f64| {
        format!(
            r#"{{"gpus": 64, "sequence_length": 4096, "global_batch": 128, "micro_batch": 1, "tp": {tp},
            "measured": {{"seconds_per_step": {seconds}}}}}"#
        )
    };
    let text = format!(
        r#"{{"source": "a test", "system": "{system}", "gpu": "H100", "software": "Megatron-LM 2025",
        "model": {{"name": "Llama 2 7B"}}, "rows": [{},{},{}]}}"#,
        row(1, seconds[0]),
        row(2, seconds[1]),
        row(4, seconds[2])
    );
    parse("run", &text).unwrap().rows
}

#[test]
fn a_known_row_moves_the_other_rows_of_its_system_alone() {
    let plain: Vec<TrainingRow> = [rows_of("Alpha", [1.0; 3]), rows_of("Beta", [1.0; 3])].concat();
    let predicted: Vec<f64> =
        predict_all(&plain, None, false).unwrap().iter().map(|row| row.step_s).collect();
    // On Alpha everything takes 1.25 times the predicted time, on Beta as long as predicted.
    let slow = [0, 1, 2].map(|at| predicted[at] * 1.25);
    let rows = [rows_of("Alpha", slow), rows_of("Beta", [3, 4, 5].map(|at| predicted[at]))].concat();
    let found = predict_all(&rows, None, true).unwrap();
    let known: Vec<bool> = found.iter().map(|row| row.known).collect();
    assert_eq!(known, [true, false, false, true, false, false]);
    for (at, row) in found.iter().enumerate() {
        let factor = row.step_s / predicted[at];
        match at {
            0..3 => assert!((1.05..1.3).contains(&factor), "{at}: {factor}"),
            _ => assert!((factor - 1.0).abs() < 0.01, "{at}: {factor}"),
        }
        let [[low, high], [low95, high95]] = [row.range80_s, row.range95_s];
        assert!(low95 < low && low < row.step_s && row.step_s < high && high < high95);
    }
}

#[test]
fn a_fit_to_nothing_is_refused() {
    let rows = rows_of("Alpha", [1.0; 3]);
    let refused = |by| predict_all(&rows, Some(by), false).unwrap_err();
    assert!(refused(ModelLeftOut::System).contains("all rows are of one system"));
    assert!(refused(ModelLeftOut::Model).contains("give rows of several models"));
}

/// The published scores hold: docs/results/training-at-scale has them in full.
#[test]
fn published_rows_are_predicted_as_well_as_the_results_say() {
    let rows: Vec<TrainingRow> = published().into_iter().flat_map(|file| file.rows).collect();
    if rows.is_empty() {
        return;
    }
    // The most that the median and the 90th percentile may be, by rows and by systems.
    for (left_out, by_rows, by_systems) in
        [(None, [0.052, 0.19], [0.05, 0.165]), (Some(ModelLeftOut::System), [0.065, 0.236], [0.097, 0.195])]
    {
        let found = predict_all(&rows, left_out, false).unwrap();
        assert_eq!(found.len(), rows.len());
        let all = score::errors(&found, |_| true).unwrap();
        for (score, most) in [(all.by_rows, by_rows), (all.by_systems, by_systems)] {
            assert!(score.median <= most[0] && score.p90 <= most[1], "{left_out:?}: {all:?}");
        }
    }
}
