//! A run that is killed repeatedly, at arbitrary moments, resumes from its newest checkpoint each time and ends with the
//! same bits as a run that was never killed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "what is killed runs in real time")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn start(config: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_allfold"))
        .args(["train", "--ranks", "2", "--config"])
        .arg(config)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The hashes at the end of a run's output.
fn hashes(child: Child) -> Vec<String> {
    let output = child.wait_with_output().unwrap();
    let (text, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{errors}");
    text.lines().filter(|line| line.contains("_hash ")).map(str::to_string).collect()
}

#[test]
fn killed_at_any_moment_a_run_goes_on_and_ends_with_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let config = |name: &str| {
        let path = directory.path().join(format!("{name}.toml"));
        let text = format!(
            "model.channels = [4]\ntraining.batch = 8\ntraining.epochs = 2\ndata.train_samples = 400\noptimiser.name = \"adamw\"\ncheckpoint.resume = true\n\
             precision.loss_scale = 64.0\ncheckpoint.every = 1\ncheckpoint.best = true\ncheckpoint.dir = '{}'\n",
            directory.path().join(name).display()
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let want = hashes(start(&config("whole")));
    assert_eq!(want.len(), 2);
    let path = config("killed");
    let mut finished = 0;
    for turn in 0..24u64 {
        let mut child = start(&path);
        // The delay varies, so that the kill comes in the middle of a step, in the middle of a write, or between them.
        std::thread::sleep(Duration::from_micros(7_000 + turn * turn * 137 % 60_000));
        finished += u32::from(child.try_wait().unwrap().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        let newest = allfold_trainer::checkpoint::newest(&directory.path().join("killed")).unwrap();
        assert!(newest.is_none_or(|path| std::fs::metadata(path).unwrap().len() > 1000));
    }
    assert!(finished < 24, "every run was over before it was killed");
    assert_eq!(hashes(start(&path)), want);
}
