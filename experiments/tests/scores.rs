//! What a training run tells of its epochs: in its summary, its records, its plot and its events for TensorBoard.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{folder, said};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Trains an MLP in ten steps an epoch; returns what was printed, and the records of its steps.
fn train(folder: &Path, more: &str, flags: &[&str]) -> (String, Vec<Value>) {
    let (config, json) = (folder.join("run.toml"), folder.join("run.jsonl"));
    let text = format!("model = \"mlp\"\nhidden = [12]\ntrain_samples = 160\nbatch = 16\nlr = 0.1\n{more}");
    fs::write(&config, text).unwrap();
    let run = ["train", "--config", config.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let printed = said(&[&run[..], flags].concat());
    let records = fs::read_to_string(&json).unwrap();
    let records = records.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    (printed, records.filter(|record| record["kind"] == "train").collect())
}

#[test]
fn a_run_that_ends_early_says_so_and_records_and_draws_its_scores() {
    let folder = folder();
    let (plot, events) = (folder.path().join("plot.svg"), folder.path().join("events"));
    let more = "epochs = 30\npatience = 2\nmin_delta = 0.02\nscore_train = true\n";
    let flags = ["--plot", plot.to_str().unwrap(), "--tensorboard", events.to_str().unwrap()];
    let (printed, records) = train(folder.path(), more, &flags);
    let epochs = records.len() / 10;
    assert!((3..30).contains(&epochs) && records.len() == 10 * epochs, "{} steps", records.len());
    let scored: Vec<&Value> = records.iter().filter(|record| !record["scores"].is_null()).collect();
    assert_eq!(scored.len(), epochs);
    for (at, record) in scored.iter().enumerate() {
        assert_eq!(record["step"], 10 * at + 9);
        let scores = &record["scores"];
        assert_eq!((&scores["epoch"], &scores["scored_on"]), (&at.into(), &"test".into()));
        for share in ["accuracy", "train_accuracy"] {
            assert!((0.0..=1.0).contains(&scores[share].as_f64().unwrap()), "{scores}");
        }
    }
    let (last, accuracy) =
        (records.last().unwrap(), |record: &Value| record["scores"]["accuracy"].as_f64().unwrap());
    assert_eq!(last["ended_early_after"], epochs);
    assert_eq!(last["accuracy"], last["scores"]["accuracy"]);
    assert!(!last["buckets"].as_array().unwrap().is_empty(), "the buckets of the last step that was made");
    assert!(records[..records.len() - 1].iter().all(|record| record["buckets"].is_null()));
    let top = scored.iter().copied().map(accuracy).fold(0.0, f64::max);
    let best = 1 + scored.iter().position(|record| accuracy(record) == top).unwrap();
    let says = format!(
        "ended early after epoch {epochs} of 30: 2 epochs without a better score; the best is epoch {best} with accuracy {:.2} %",
        top * 100.0
    );
    assert!(printed.contains(&says), "{printed}");
    let drawn = fs::read_to_string(plot).unwrap();
    for text in ["Training loss of the mlp", "Accuracy of the mlp", ">test set<", ">training set<"] {
        assert!(drawn.contains(text), "{text}");
    }
    let file = fs::read_dir(events).unwrap().next().unwrap().unwrap().path();
    let tags = fs::read(file).unwrap();
    assert_eq!(tags.windows(14).filter(|window| window == b"train/accuracy").count(), epochs);
}

#[test]
fn a_run_with_all_its_epochs_tells_of_no_early_end() {
    let folder = folder();
    let (printed, records) = train(folder.path(), "epochs = 2\nvalidation = 32\n", &[]);
    assert!(!printed.contains("ended early") && !printed.contains("the best"), "{printed}");
    let scores = &records.last().unwrap()["scores"];
    assert_eq!(scores["scored_on"], "validation");
    assert!(scores["train_accuracy"].is_null() && records.last().unwrap()["ended_early_after"].is_null());
}
