//! Help, version, shell completions and manual pages.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{allfold, said};
use std::process::Command;

/// Text and records that find no standard output are a failure, not lost.
#[test]
fn a_standard_output_that_is_closed_from_the_start_is_an_error() {
    for args in
        ["verify all_reduce --algo ring --ranks 2", "verify all_reduce --algo ring --ranks 2 --json -"]
    {
        let script = format!("exec {} {args} >&-", env!("CARGO_BIN_EXE_allfold"));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args}: {line}");
        assert!(line.contains("error: the output cannot be written: Bad file descriptor"), "{args}: {line}");
    }
}

#[test]
fn without_a_command_the_help_is_printed() {
    let help = said(&["--help"]);
    assert_eq!(said(&[]), help);
    assert_eq!(said(&["help"]), help);
    assert!(
        help.contains("Usage: allfold") && help.contains("compare") && help.contains("Start with:"),
        "{help}"
    );
    assert!(said(&["help", "compare"]).contains("--strategies"));
    assert!(said(&["data"]).contains("allfold data"));
}

#[test]
fn the_version_names_the_commit_and_the_features() {
    let version = said(&["--version"]);
    assert!(
        version.starts_with("allfold ") && version.contains("(commit ") && version.contains("features "),
        "{version}"
    );
}

#[test]
fn every_command_and_flag_is_completed_and_has_a_page() {
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&["completions", shell]);
        assert!(script.contains("compare") && script.contains("topology"), "{shell}");
    }
    assert!(said(&["man"]).contains(".TH allfold") && said(&["man", "train"]).contains("\\-\\-config"));
    let wrong = allfold(&["man", "trian"]);
    let line = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(line.contains("no command is called `trian`; did you mean `train`?"), "{line}");
}
