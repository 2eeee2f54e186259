//! The secret of a job's sockets, as `bench` takes it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Ranks that are threads of one process would do with a secret of their own, and do not ignore the one that is named.
#[test]
fn a_secret_that_cannot_be_used_is_refused_by_every_way_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("secret");
    fs::write(&open, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    for (path, why) in [(folder.path().join("missing"), "missing"), (open, "chmod 600")] {
        for mode in ["tls", "trusted-fabric"] {
            let bench = ["bench", "all_reduce", "--backend", "tcp", "--ranks", "2", "-b", "1K", "-e", "1K"];
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_allfold"));
            let output = command
                .args(bench)
                .args(["--security", mode])
                .env("ALLFOLD_SECRET_FILE", &path)
                .output()
                .unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && error.contains(why), "{mode}: {error}");
        }
    }
}
