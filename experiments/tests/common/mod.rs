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

/// The line of a command that is refused.
#[allow(dead_code, reason = "not every test file uses all of this")]
pub fn refused(args: &[&str]) -> String {
    let output = allfold(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    // On a busy machine a command may take the two seconds after which progress is printed.
    let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with("so far")).collect();
    assert!(matches!(lines[..], [line] if line.starts_with("error: ")), "{args:?}:\n{text}");
    lines[0].into()
}

/// Checks that a command is refused with a line that contains each of `hints`.
#[allow(dead_code, reason = "not every test file uses all of this")]
pub fn says(args: &[&str], hints: &[&str]) {
    let line = refused(args);
    for hint in hints {
        assert!(line.contains(hint), "{args:?}: no `{hint}` in: {line}");
    }
}
