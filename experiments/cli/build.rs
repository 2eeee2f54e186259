//! Stamps the binary with the commit it was built from, so that every record can name the commit. `ALLFOLD_COMMIT` in the
//! environment takes precedence: for builds from an archive without git history.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=ALLFOLD_COMMIT");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=../src");
    println!("cargo:rerun-if-changed=../../.git/logs/HEAD");
    let commit = std::env::var("ALLFOLD_COMMIT").ok().or_else(from_git).unwrap_or_else(|| "unknown".into());
    println!("cargo:rustc-env=ALLFOLD_COMMIT={commit}");
}

fn from_git() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_string())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let dirty = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if dirty { format!("{commit}-dirty") } else { commit })
}
