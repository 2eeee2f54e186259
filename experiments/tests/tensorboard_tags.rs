//! The score that a training run writes for TensorBoard: its tag names the dataset that was scored, and its value is that of
//! the run's record.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{allfold, folder, said};
use std::fs;
use std::path::Path;

/// The numbers of a tag in the event file of a folder: a value is `0a length tag 15 number`.
fn numbers(folder: &Path, tag: &str) -> Vec<f32> {
    let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(file).unwrap();
    let head = [&[0x0a, tag.len() as u8][..], tag.as_bytes(), &[0x15]].concat();
    let values = bytes.windows(head.len() + 4).filter(|window| window.starts_with(&head));
    values.map(|value| f32::from_le_bytes(*value.last_chunk().unwrap())).collect()
}

/// The numbers, below 128, of the steps of the events that begin with a tag: `10 step 2a length 0a length 0a length tag`.
fn steps_of(folder: &Path, tag: &str) -> Vec<u64> {
    let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(file).unwrap();
    let head = [&[0x0a, tag.len() as u8][..], tag.as_bytes()].concat();
    let ends = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&head));
    ends.map(|at| {
        u64::from(bytes[..at].iter().rposition(|byte| *byte == 0x2a).map(|at| bytes[at - 1]).unwrap())
    })
    .collect()
}

#[test]
fn accuracy_is_told_under_the_set_that_it_is_of() {
    for (validation, scored_on, other) in [(0, "test", "validation"), (32, "validation", "test")] {
        let folder = folder();
        let (config, events) = (folder.path().join("run.toml"), folder.path().join("events"));
        let text = format!(
            "model.name = \"mlp\"\ntraining.epochs = 2\ndata.train_samples = 96\ntraining.batch = 16\ndata.validation = {validation}\n"
        );
        fs::write(&config, text).unwrap();
        let (config, into) = (config.to_str().unwrap(), events.to_str().unwrap());
        let printed = said(&["train", "--config", config, "--tensorboard", into, "--json", "-"]);
        let told = numbers(&events, &format!("{scored_on}/accuracy"));
        assert_eq!(told.len(), 2, "one for each epoch");
        assert!(numbers(&events, &format!("{other}/accuracy")).is_empty());
        let ends: Vec<f64> = printed
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?["accuracy"].as_f64())
            .collect();
        assert_eq!(ends.last().map(|end| *end as f32), told.last().copied(), "{printed}");
    }
}

/// Regression: a step that was skipped, since a gradient was not finite, was seen with `-v` alone.
#[test]
fn a_skipped_step_and_the_loss_scale_are_told() {
    let folder = folder();
    let (config, events) = (folder.path().join("run.toml"), folder.path().join("events"));
    let text = "model.name = \"mlp\"\ndata.train_samples = 96\ntraining.batch = 16\ntraining.max_steps = 3\n\
                precision.amp = \"f16\"\nprecision.loss_scale = 1e30\nprecision.scale_backoff = 1e-28\n";
    fs::write(&config, text).unwrap();
    let (config, into) = (config.to_str().unwrap(), events.to_str().unwrap());
    let output = allfold(&["train", "--config", config, "--ranks", "2", "--tensorboard", into]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("step 0 is skipped, since a gradient was not finite").count(), 1, "{said}");
    let scales = numbers(&events, "loss_scale");
    assert!(scales.len() == 3 && scales.iter().all(|scale| (50.0..200.0).contains(scale)), "{scales:?}");
}

/// The records and TensorBoard have one loss of a step, the mean over the ranks, under one number. Regression: TensorBoard had the loss
/// of rank 0, and an epoch's scores stood at the number of the next step.
#[test]
fn a_step_has_one_loss_and_one_number() {
    let folder = folder();
    let (config, events) = (folder.path().join("run.toml"), folder.path().join("events"));
    let text = "model.name = \"mlp\"\ntraining.epochs = 2\ndata.train_samples = 96\ntraining.batch = 8\n";
    fs::write(&config, text).unwrap();
    let (config, into) = (config.to_str().unwrap(), events.to_str().unwrap());
    let printed = said(&["train", "--config", config, "--ranks", "3", "--tensorboard", into, "--json", "-"]);
    let records = printed.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let steps: Vec<_> = records.filter(|record| record["kind"] == "train").collect();
    let losses: Vec<f32> = steps.iter().map(|step| step["loss"].as_f64().unwrap() as f32).collect();
    assert_eq!((losses.len(), numbers(&events, "loss")), (8, losses));
    let scored: Vec<u64> = steps
        .iter()
        .filter(|step| step["scores"].is_object())
        .map(|step| step["step"].as_u64().unwrap())
        .collect();
    assert_eq!((&scored[..], steps_of(&events, "epoch/loss")), (&[3, 7][..], scored.clone()));
}
