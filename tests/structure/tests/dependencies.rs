#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! The pure crates compile alone: no sockets, cryptography, GPU driver, MPI or command line reaches them, by any path of
//! normal dependencies and with every feature of theirs on.

use std::collections::BTreeSet;
use std::process::Command;

const PURE: [&str; 7] = [
    "allfold-base",
    "allfold-schedules",
    "allfold-sim",
    "allfold-timing",
    "allfold-nccl-model",
    "allfold-report",
    "allfold-validation",
];

const IMPURE: [&str; 7] = ["tokio", "rustls", "aws-lc-rs", "ring", "cudarc", "mpi", "clap"];

/// Every package that a crate needs by normal dependencies, itself included, as `cargo tree` resolves them.
fn needs(krate: &str, features: &[&str]) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--package", krate])
        .args(features)
        .current_dir(allfold_structure::root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{krate}: {}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8(tree.stdout).unwrap();
    let found: BTreeSet<String> =
        text.lines().filter_map(|line| line.split(' ').next()).map(String::from).collect();
    assert!(found.contains(krate), "{krate} is not in its own tree:\n{text}");
    found
}

/// Which of the impure packages a crate needs.
fn impure(krate: &str, features: &[&str]) -> Vec<&'static str> {
    let needed = needs(krate, features);
    IMPURE.into_iter().filter(|package| needed.contains(*package)).collect()
}

#[test]
fn no_sockets_cryptography_or_drivers_reach_the_pure_crates() {
    for krate in PURE {
        let found = impure(krate, &["--all-features"]);
        assert_eq!(found, Vec::<&str>::new(), "{krate} depends on what is not pure");
    }
}

/// The packages are found where they are needed, so that an empty list means something. `mpi` is behind a feature, and need
/// not be downloaded; `ring` is a second library for what AWS-LC does, and needed nowhere.
#[test]
fn what_is_not_pure_is_found_where_it_is_needed() {
    let collectives = impure("allfold-collectives", &[]);
    assert!(impure("allfold-gpu", &[]).contains(&"cudarc"));
    assert_eq!(collectives, ["tokio"], "ranks on CPUs need no GPU, no TLS and no command line");
    let command = impure("allfold-experiments", &[]);
    for package in ["tokio", "rustls", "aws-lc-rs", "cudarc", "clap"] {
        assert!(command.contains(&package), "{package} is not among {command:?}");
    }
}

/// The command without its features has neither GPUs nor TLS.
#[test]
fn a_build_without_features_needs_no_driver_and_no_cryptography() {
    let command = impure("allfold-experiments", &["--no-default-features"]);
    assert_eq!(command, ["tokio", "clap"]);
}

/// Schedules are proved without a simulator and timed without ranks; `allfold-net` depends on neither schedules nor
/// simulator.
#[test]
fn crates_depend_downwards_only() {
    let ours = |krate: &str| -> Vec<String> {
        needs(krate, &["--all-features"]).into_iter().filter(|name| name.starts_with("allfold-")).collect()
    };
    assert_eq!(ours("allfold-base"), ["allfold-base"]);
    assert_eq!(ours("allfold-sim"), ["allfold-base", "allfold-sim"]);
    assert_eq!(ours("allfold-schedules"), ["allfold-base", "allfold-schedules"]);
    assert_eq!(
        ours("allfold-timing"),
        ["allfold-base", "allfold-schedules", "allfold-sim", "allfold-timing"]
    );
    let all = ["allfold-base", "allfold-nccl-model", "allfold-schedules", "allfold-sim", "allfold-timing"];
    assert_eq!(ours("allfold-nccl-model"), all);
    assert_eq!(ours("allfold-net"), ["allfold-base", "allfold-kernels", "allfold-net"]);
    assert_eq!(ours("allfold-kernels"), ["allfold-base", "allfold-kernels"]);
    assert_eq!(ours("allfold-cuda"), ["allfold-base", "allfold-cuda", "allfold-kernels"]);
    assert_eq!(
        ours("allfold-standin"),
        ["allfold-base", "allfold-cuda", "allfold-kernels", "allfold-standin"]
    );
    assert!(!needs("allfold-collectives", &[]).contains("allfold-nccl-model"));
    assert!(!needs("allfold-experiments", &[]).contains("allfold-standin"), "stand-ins are for tests");
    assert_eq!(ours("allfold-report"), ["allfold-report"], "a page is made of records alone");
    assert!(!ours("allfold-validation").contains(&"allfold-trainer".to_string()));
    let launch = ours("allfold-launch");
    for above in ["allfold-trainer", "allfold-report", "allfold-gpu"] {
        assert!(!launch.contains(&above.to_string()), "starting processes needs no {above}");
    }
}
