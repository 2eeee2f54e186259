//! Rows of training speed of large models: what `validate` says of them, and its records.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{folder, records, said, says};
use serde_json::{Value, json};
use std::path::Path;

const RUN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/runs/h100x8_xxrjun_reduce_scatter.json");

/// A file of rows of Llama 2 7B on 64 H100, each with these fields over plain ones.
fn written(folder: &Path, name: &str, system: &str, rows: &[Value]) -> String {
    let plain = json!({"gpus": 64, "sequence_length": 4096, "global_batch": 256, "micro_batch": 1, "tp": 2, "precision": "bf16",
        "sharding": "zero1", "measured": {"seconds_per_step": 2.5}, "suspect": false});
    let rows = rows.iter().map(|row| {
        let mut whole = plain.clone();
        row.as_object().unwrap().iter().for_each(|(key, value)| whole[key] = value.clone());
        whole
    });
    let file = json!({"source": "a test", "system": system, "gpu": "H100 80GB HBM3", "gpus_per_node": 8, "software": "NeMo 25.04",
        "model": {"name": "Llama 2 7B"}, "rows": rows.collect::<Value>()});
    let path = folder.join(name);
    std::fs::write(&path, file.to_string()).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn every_row_that_states_enough_has_a_record() {
    let folder = folder();
    let rows = [
        json!({"memory_gb": 40.0}),
        json!({"tp": 4, "suspect": true}),
        json!({"tp": 1, "micro_batch": 64, "global_batch": 4096, "measured": {}, "out_of_memory": true}),
        json!({"gpus": 63}),
        json!({"sequence_length": null}),
    ];
    let file = written(folder.path(), "a.json", "Alpha", &rows);
    let records = records(&["validate", &file]);
    assert_eq!(records.len(), 3);
    let [first, doubted, failed] = [0, 1, 2].map(|at| &records[at]);
    let is = |record: &Value, key: &str, right: Value| assert_eq!(record[key], right, "{key}: {record}");
    is(first, "kind", json!("validate_training"));
    is(first, "system", json!("alpha-h100"));
    is(first, "model", json!("Llama 2 7B"));
    is(first, "gpus", json!(64));
    is(first, "run", json!("a"));
    is(first, "measured_step_s", json!(2.5));
    is(first, "fit", json!("spec"));
    let number = |key: &str| first[key].as_f64().unwrap_or_else(|| panic!("{key}: {first}"));
    let ends = ["low95_s", "low_s", "predicted_step_s", "high_s", "high95_s"].map(number);
    assert!(ends.is_sorted() && ends[0] > 0.0, "{ends:?}");
    assert!((20.0..79.0).contains(&number("predicted_memory_gb")) && first["fits"] == true, "{first}");
    is(doubted, "suspect", json!(true));
    // A job that did not fit has no times.
    for key in ["measured_step_s", "predicted_step_s", "low_s", "high95_s"] {
        is(failed, key, Value::Null);
    }
    is(failed, "fits", json!(false));
    is(failed, "out_of_memory", json!(true));
    is(failed, "row", json!(2));
    let text = said(&["validate", &file, "--rows"]);
    for words in [
        "3 rows of training predicted, 2 left out",
        "left out: a, row 3: 63 GPUs are no multiple of tp 2 x pp 1 x cp 1 = 2",
        "error, dense: 1 row of 1 system ",
        "1  sequence length not stated",
        "(doubted)",
    ] {
        assert!(text.contains(words), "no `{words}` in:\n{text}");
    }
    let failed = text.lines().find(|line| line.starts_with("out of memory, and predicted so"));
    assert!(failed.is_some_and(|line| line.ends_with("100.0 % of 1")), "{text}");
}

#[test]
fn one_known_row_of_a_system_is_marked_and_not_scored() {
    let folder = folder();
    let slow = |seconds: f64| json!({"measured": {"seconds_per_step": seconds}});
    let rows = [json!({"suspect": true}), slow(2.0), slow(2.0)];
    let a = written(folder.path(), "a.json", "Alpha", &rows);
    let b = written(folder.path(), "b.json", "Beta", &[slow(2.0), slow(2.0)]);
    let found = records(&["validate", &a, &b, "--with-one-row"]);
    let known: Vec<bool> = found.iter().map(|record| record["known"].as_bool().unwrap()).collect();
    assert_eq!(known, [false, true, false, true, false]);
    assert!(found.iter().all(|record| record["fit"] == "system"));
    let step = |records: &[Value], at: usize| records[at]["predicted_step_s"].as_f64().unwrap();
    let spec = records(&["validate", &a, &b, "--spec-only"]);
    assert!(step(&found, 2) > 1.1 * step(&spec, 2));
    let text = said(&["validate", &a, &b, "--with-one-row"]);
    assert!(text.contains("error, all: 2 rows of 2 systems"), "{text}");
    let text = said(&["validate", &a, &b, "--leave-one-system-out"]);
    assert!(text.contains("error, all: 4 rows of 2 systems"), "{text}");
    says(&["validate", &a, "--leave-one-system-out"], &["all rows are of one system", "several systems"]);
    says(&["validate", &a, &b, "--leave-one-model-out"], &["all rows are of one model"]);
    says(&["validate", &a, "--leave-one-model-out", "--leave-one-system-out"], &["cannot be used with"]);
}

#[test]
fn flags_and_files_of_the_other_kind_are_said_in_a_line() {
    let folder = folder();
    let rows = written(folder.path(), "a.json", "Alpha", &[json!({})]);
    let text = said(&["validate", &rows, RUN]);
    assert!(
        text.contains("1 row of training predicted") && text.contains("physical: median factor"),
        "{text}"
    );
    let text = said(&["validate", &rows, RUN, "--with-one-row"]);
    assert!(text.contains("left out: all runs of collectives, since --with-one-row"), "{text}");
    says(&["validate", RUN, "--with-one-row"], &["--with-one-row is for rows of training"]);
    says(
        &["validate", &rows, "--ablation", "--leave-one-system-out"],
        &["--ablation is for runs of collectives"],
    );
    says(&["validate", &rows, "--predictor", "physical"], &["--predictor is for runs of collectives"]);
    let other = folder.path().join("other.json");
    let text = r#"{"kind": "all-to-all of experts", "system": "x", "gpu": "H100", "model": {"name": "y"}, "rows": []}"#;
    std::fs::write(&other, text).unwrap();
    let other = other.to_str().unwrap();
    says(&["validate", other], &["these are rows of \"all-to-all of experts\", not of training"]);
    assert!(said(&["validate", &rows, other]).contains("left out: "));
    let nothing = written(folder.path(), "b.json", "Alpha", &[json!({"precision": "posit9"})]);
    says(&["validate", &nothing], &["every row was left out: b, row 0: `precision` is \"posit9\""]);
}
