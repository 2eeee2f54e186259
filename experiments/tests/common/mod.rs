//! Runs the command, and reads what it wrote.

use std::process::{Command, Output};

#[allow(dead_code, reason = "not every test file uses all of this")]
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

pub fn allfold(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_allfold")).args(args).output().unwrap()
}

/// Standard output of a command that succeeds.
#[allow(dead_code, reason = "not every test file uses all of this")]
pub fn said(args: &[&str]) -> String {
    let output = allfold(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The records that `--json -` puts on standard output.
#[allow(dead_code, reason = "not every test file uses all of this")]
pub fn records(args: &[&str]) -> Vec<serde_json::Value> {
    let text = said(&[args, &["--json", "-"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
