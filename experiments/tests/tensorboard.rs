//! Event files, read by TensorBoard's own loader if `python3` has TensorBoard, also from `scripts/install-tensorboard.sh`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_experiments::training::tensorboard::Events;
use std::path::Path;
use std::process::Command;

/// Prints a line for each number that the loader finds: tag, step, value.
const READ: &str = r"
import sys
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.directory_watcher import DirectoryWatcher
from tensorboard.backend.event_processing import io_wrapper
from tensorboard.util import tensor_util

watcher = DirectoryWatcher(sys.argv[1], EventFileLoader, io_wrapper.IsSummaryEventsFile)
for event in watcher.Load():
    if event.file_version:
        print('version', event.file_version)
    for value in event.summary.value:
        number = tensor_util.make_ndarray(value.tensor).item() if value.HasField('tensor') else value.simple_value
        print(value.tag, event.step, number)
";

#[test]
fn tensorboard_reads_what_was_written() {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tensorboard");
    let python = |program: &str| {
        let mut command = Command::new("python3");
        if installed.join("installed").exists() {
            command.env("PYTHONPATH", &installed);
        }
        command.args(["-c", program]);
        command
    };
    if !python("import tensorboard").output().is_ok_and(|done| done.status.success()) {
        println!("SKIP: python3 has no tensorboard; scripts/install-tensorboard.sh brings it");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut events = Events::create(directory.path()).unwrap();
    let written: Vec<(u64, [(&str, f64); 2])> = [0, 1, 127, 128, 300, 70_000]
        .map(|step| (step, [("loss", 1.0 / (step + 1) as f64), ("step_ms/forward", step as f64 * 0.25)]))
        .into();
    for (step, values) in &written {
        events.scalars(*step, values).unwrap();
    }
    let done = python(READ).arg(directory.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let read = String::from_utf8(done.stdout).unwrap();
    let mut lines = read.lines();
    assert_eq!(lines.next(), Some("version brain.Event:2"));
    for (step, values) in written {
        for (tag, value) in values {
            let line = lines.next().unwrap_or_default();
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(words[..2], [tag, &step.to_string()], "{read}");
            assert_eq!(words[2].parse::<f64>().unwrap() as f32, value as f32, "{line}");
        }
    }
    assert_eq!(lines.next(), None);
}
