//! What a training run reports about its epochs and layers: in its summary, its records, its plots and its events for TensorBoard.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{folder, said};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Trains an MLP in ten steps an epoch; returns what was printed, and the records of its steps.
fn train(folder: &Path, more: &str, flags: &[&str]) -> (String, Vec<Value>) {
    let (config, json) = (folder.join("run.toml"), folder.join("run.jsonl"));
    let text = format!(
        "model.name = \"mlp\"\nmodel.hidden = [12]\ndata.train_samples = 160\ntraining.batch = 16\noptimiser.lr = 0.1\n{more}"
    );
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
    let more = "training.epochs = 30\ntraining.patience = 2\ntraining.min_delta = 0.02\ntraining.score_train = true\n";
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
    let (printed, records) = train(folder.path(), "training.epochs = 2\ndata.validation = 32\n", &[]);
    assert!(!printed.contains("ended early") && !printed.contains("the best"), "{printed}");
    let scores = &records.last().unwrap()["scores"];
    assert_eq!(scores["scored_on"], "validation");
    assert!(scores["train_accuracy"].is_null() && records.last().unwrap()["ended_early_after"].is_null());
}

/// The summary has a row for each epoch, of a long run for ten of them.
#[test]
fn the_summary_has_the_scores_of_the_epochs() {
    let folder = folder();
    for (epochs, count) in [(1, 0), (3, 3), (24, 10)] {
        let more = format!("training.epochs = {epochs}\n");
        let (printed, records) = train(folder.path(), &more, &[]);
        let records = &records[records.len() - 10 * epochs..];
        let of = |epoch: usize| &records[10 * epoch - 1]["scores"];
        let rows = printed.lines().skip_while(|line| !line.starts_with("epoch  ")).skip(1);
        let rows: Vec<Vec<&str>> = rows
            .take_while(|line| !line.starts_with("accuracy"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(rows.len() == count || (count == 10 && rows.len() == 9), "{printed}");
        for row in &rows {
            let scores = of(row[0].parse().unwrap());
            for (cell, key, scale, error) in
                [(1, "loss", 1.0, 1e-6), (2, "score_loss", 1.0, 1e-6), (3, "accuracy", 100.0, 0.01)]
            {
                let (shown, exact) = (row[cell].parse::<f64>().unwrap(), scores[key].as_f64().unwrap());
                assert!((shown - scale * exact).abs() < error, "{key} {exact}: {printed}");
            }
        }
        let marked = rows.iter().filter(|row| row.last() == Some(&"best")).count();
        assert_eq!(marked, usize::from(count > 0), "{printed}");
        let ends = rows.first().zip(rows.last()).map(|(first, last)| (first[0], last[0]));
        assert_eq!(ends, (count > 0).then_some(("1", &*epochs.to_string())), "{printed}");
    }
}

/// The rate is halved after each epoch of ten steps. A resumed run records the rates of its own steps.
#[test]
fn the_record_of_a_step_has_its_learning_rate() {
    let folder = folder();
    let kept = folder.path().join("kept");
    let keys = format!(
        "lr_schedule.name = \"step\"\nlr_schedule.every = 10\nlr_schedule.factor = 0.5\ntraining.epochs = 2\n\
         checkpoint.dir = {kept:?}\ncheckpoint.every = 10\ncheckpoint.resume = true\n"
    );
    let rates = |flags: &[&str]| -> Vec<Option<f64>> {
        train(folder.path(), &keys, flags).1.iter().map(|record| record["lr"].as_f64()).collect()
    };
    let is = |rate: &Option<f64>, wanted: f64| rate.is_some_and(|rate| (rate - wanted).abs() < 1e-12);
    let first = rates(&["--steps", "10"]);
    assert!(first.len() == 10 && first.iter().all(|rate| is(rate, 0.1)), "{first:?}");
    // Records are appended: those of the first run come before.
    let own = rates(&["--steps", "20"]).split_off(first.len());
    assert!(own.len() == 10 && own.iter().all(|rate| is(rate, 0.05)), "{own:?}");
}

/// The file of the best weights is written at the end of whole epochs: of an epoch that is cut short nothing is stored or announced.
#[test]
fn the_best_epoch_is_one_whose_weights_are_kept() {
    let folder = folder();
    let kept = folder.path().join("kept");
    let keys = format!(
        "checkpoint.dir = {kept:?}\ncheckpoint.best = true\ndata.validation = 32\ntraining.epochs = 2\n"
    );
    let (printed, records) = train(folder.path(), &keys, &["--steps", "3"]);
    assert!(records.len() == 3 && !printed.contains("the best"), "{printed}");
    assert!(!kept.join("best.safetensors").exists());
    let (printed, _) = train(folder.path(), &keys, &["--steps", "11"]);
    assert!(printed.contains("the best is epoch 1 ") && kept.join("best.safetensors").exists(), "{printed}");
}

/// The bars of a row of a Chrome trace: rank, name and length in microseconds.
fn bars(trace: &Path, row: u64) -> Vec<(u64, String, f64)> {
    let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    let bars = trace["traceEvents"].as_array().or(trace.as_array()).unwrap();
    let bars = bars.iter().filter(|bar| bar["ph"] == "X" && bar["tid"] == row);
    bars.map(|bar| {
        let name = bar["name"].as_str().unwrap().to_string();
        (bar["pid"].as_u64().unwrap(), name, bar["dur"].as_f64().unwrap())
    })
    .collect()
}

#[test]
fn a_profile_has_the_layers_of_the_scheduled_steps_on_every_rank() {
    let folder = folder();
    let (trace, events) = (folder.path().join("profile.json"), folder.path().join("events"));
    let schedule = "skip=1,wait=1,warmup=1,active=2,repeat=2";
    let flags = [
        "--profile",
        trace.to_str().unwrap(),
        "--profile-schedule",
        schedule,
        "--steps",
        "10",
        "--ranks",
        "2",
    ];
    for backend in ["threads", "sim"] {
        let flags = [&flags[..], &["--backend", backend, "--tensorboard", events.to_str().unwrap()]].concat();
        let (printed, _) = train(folder.path(), "training.accumulate = 2\n", &flags);
        let steps = bars(&trace, 0);
        for rank in 0..2 {
            let of: Vec<&str> = steps.iter().filter(|bar| bar.0 == rank).map(|bar| bar.1.as_str()).collect();
            assert_eq!(of, ["step 3", "step 4", "step 7", "step 8"], "{backend}");
        }
        // Two micro-batches of four steps on two ranks: each layer has a forward pass and weight gradients, each but the first
        // gradients of its input.
        let layers = bars(&trace, 2);
        let times = |name: &str| layers.iter().filter(|bar| bar.1 == name).count();
        assert_eq!(
            (times("fc1"), times("relu1"), times("fc2"), times("loss")),
            (32, 32, 48, 16),
            "{layers:?}"
        );
        let all: f64 = layers.iter().map(|bar| bar.2).sum();
        let length: f64 = steps.iter().map(|bar| bar.2).sum();
        assert!(all > 0.0 && all <= length, "{all} of {length}");
        assert!(printed.contains("weight grad") && printed.contains("\n  fc1 "), "{printed}");
        let records = fs::read_to_string(folder.path().join("run.jsonl")).unwrap();
        let records = records.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of: Vec<Value> = records.filter(|record| record["kind"] == "layer").collect();
        let names: Vec<&str> = of.iter().map(|record| record["layer"].as_str().unwrap()).collect();
        assert_eq!(names, ["fc1", "relu1", "fc2", "loss"]);
        let mean = |key: &str| of.iter().map(|record| record[key].as_f64().unwrap()).sum::<f64>();
        let recorded = mean("forward_us") + mean("input_grad_us") + mean("weight_grad_us");
        assert!((recorded * 8.0 - all).abs() <= 0.01 * all, "{recorded} {all}");
        assert!(of.iter().all(|record| record["steps"] == 4 && record["measured"] == (backend == "threads")));
        let file = fs::read_dir(&events).unwrap().next().unwrap().unwrap().path();
        let tags = fs::read(&file).unwrap();
        assert_eq!(tags.windows(14).filter(|window| window == b"forward_us/fc2").count(), 4);
        fs::remove_file(file).unwrap();
        fs::remove_file(folder.path().join("run.jsonl")).unwrap();
    }
}

#[test]
fn each_process_writes_the_profile_of_its_rank() {
    let folder = folder();
    let (config, trace) = (folder.path().join("run.toml"), folder.path().join("profile.json"));
    fs::write(&config, "model.name = \"mlp\"\nmodel.hidden = [12]\n").unwrap();
    let launch = ["launch", "-n", "2", "--", "train", "--config", config.to_str().unwrap(), "--steps", "4"];
    said(&[&launch[..], &["--profile", trace.to_str().unwrap()]].concat());
    for rank in 0..2 {
        let own = bars(&trace.with_extension(format!("{rank}.json")), 0);
        let of: Vec<_> = own.iter().map(|bar| (bar.0, bar.1.as_str())).collect();
        assert_eq!(of, [(rank, "step 2"), (rank, "step 3")]);
    }
    assert!(!trace.exists());
}
