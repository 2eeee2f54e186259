//! The lines of progress that a command prints while it runs, and what an interrupted run leaves.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(unix)]

mod common;

use common::folder;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");

fn started(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_allfold"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

fn first_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line
}

fn kinds(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_training_run_is_heard_at_once_and_an_interrupted_one_leaves_what_it_did() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let folder = folder();
        let json = folder.path().join("part.jsonl");
        let mut child =
            started(&["train", "--config", MLP, "--set", "epochs=100000", "--json", json.to_str().unwrap()]);
        let mut text = BufReader::new(child.stdout.take().unwrap());
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let head = first_line(&mut text);
        assert!(head.starts_with("mlp with ") && head.contains("parameters, ddp, 1 rank"), "{head}");
        let line = first_line(&mut log);
        assert!(line.starts_with("step ") && line.contains("loss ") && line.contains("so far"), "{line}");
        interrupt(&child, signal);
        let mut rest = String::new();
        text.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{rest}");
        assert!(rest.starts_with("interrupted after step ") && rest.contains("loss of rank 0"), "{rest}");
        let records = kinds(&json);
        let last = records.last().unwrap();
        assert_eq!(
            (&last["kind"], &last["measured"], &last["ranks"]),
            (&"train_progress".into(), &true.into(), &1.into())
        );
        assert!(last["step"].as_u64().unwrap() > 0 && last["loss"].is_number(), "{last}");
    }
}

#[test]
fn a_long_wait_is_told_on_standard_error() {
    let mut child = started(&["verify", "all_reduce", "--algo", "ring", "--ranks", "3000"]);
    let line = first_line(&mut BufReader::new(child.stderr.take().unwrap()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.starts_with("proving: 0 of 1, ") && line.trim_end().ends_with("so far"), "{line}");
}

/// With `-q` no progress is printed on standard error, however long the run takes. This run ends after a few seconds.
#[test]
fn a_quiet_run_tells_no_progress() {
    let args = ["verify", "-q", "all_reduce", "--algo", "ring", "--ranks", "1500"];
    let output = started(&args).wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn an_interrupted_report_leaves_no_folder() {
    let folder = folder();
    let out = folder.path().join("a/report");
    let mut child = started(&["report", "--out", out.to_str().unwrap()]);
    let line = first_line(&mut BufReader::new(child.stdout.take().unwrap()));
    assert!(line.starts_with("proofs "), "{line}");
    interrupt(&child, Signal::INT);
    assert!(!child.wait().unwrap().success());
    assert!(!folder.path().join("a").exists());
}
