//! Commands that use a GPU, on a machine without one: one line says what is missing and how to get it, and the exit code is 2. On a
//! machine with a GPU the first test prints SKIP: `scripts/gpu-check.sh` runs the commands there.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use allfold_collectives::registry::{ALGORITHMS, Shape};
use allfold_collectives::{Collective, DType, ReduceOp};
use allfold_experiments::call::plan::Choice;
use allfold_experiments::measure::gpus::Gpus;
use allfold_experiments::measure::ranks::Timing;
use allfold_gpu::device::ExecutionMode;
use allfold_standin::{FiberOrder, Shim};
use common::{allfold, folder, said};

/// What this machine lacks for GPUs; `None` if it lacks nothing.
fn missing(test: &str) -> Option<String> {
    match allfold_cuda::probe() {
        Ok(_) => {
            println!("SKIP {test}: there is a GPU");
            None
        }
        Err(why) => Some(why.to_string()),
    }
}

fn refused(args: &[&str], code: i32) -> String {
    let output = allfold(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{args:?}:\n{text}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    text
}

#[test]
fn without_a_gpu_every_entry_says_so_in_one_line() {
    let Some(why) = missing("every entry") else { return };
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    let gpu = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/gpu/mlp.toml");
    for args in [
        &["bench", "all_reduce", "--backend", "device", "--ranks", "2"][..],
        &["bench", "all_reduce", "--backend", "nccl", "--ranks", "2"],
        &["bench", "broadcast", "--backend", "nccl", "--ranks", "2", "--algo", "binomial"],
        &["train", "--config", config, "--device", "cuda"],
        &["train", "--config", config, "--device", "cuda", "--ranks", "3"],
        &["train", "--config", gpu],
        &["scale", "--config", gpu, "--ranks", "1,2", "--steps", "1"],
    ] {
        assert_eq!(refused(args, 2), format!("error: {why}\n"), "{args:?}");
    }
    let doctor = said(&["doctor"]);
    assert!(doctor.lines().any(|line| line.contains("cuda")), "{doctor}");
}

#[test]
fn what_cannot_be_on_a_gpu_is_refused_before_one_is_looked_for() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    let refused = |args: &[&str], hint: &str| {
        let line = refused(args, 2);
        assert!(line.contains(hint), "{args:?}: no `{hint}` in: {line}");
    };
    refused(&["train", "--config", config, "--device", "cuda", "--backend", "sim"], "real time");
    refused(&["train", "--config", config, "--device", "a100_f32"], "--backend sim");
    refused(
        &["bench", "all_reduce", "--backend", "device", "--ranks", "2", "--topology", "switch"],
        "--backend sim",
    );
    let folder = folder();
    let path = folder.path().join("c.toml");
    std::fs::write(&path, "device = \"cuda\"\nexchange = \"ncl\"\n").unwrap();
    refused(&["train", "--config", path.to_str().unwrap()], "nccl");
    std::fs::write(&path, "device = \"cud\"\n").unwrap();
    refused(&["train", "--config", path.to_str().unwrap()], "cuda");
}

/// The device backend on the shim: every algorithm but a barrier's gives the right result by messages, an all-reduce also fused.
#[test]
fn every_algorithm_is_measured_and_right_on_the_shim_of_a_gpu() {
    let gpus = Gpus::over(Shim::open(FiberOrder::Upwards).unwrap());
    let timing =
        Timing { iterations: 2, warmup: 1, check: true, seed: 3, virtual_time: false, registered: true };
    for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.collective != Collective::Barrier) {
        let choice = Choice {
            dtype: DType::Bf16,
            op: ReduceOp::Avg,
            ..Choice::new(algorithm.collective, Some(algorithm), Shape::new(5).unwrap())
        };
        let timed = gpus.device(&choice, ExecutionMode::Messages, timing, 1000).unwrap();
        assert_eq!(timed.wrong, Some(0), "{algorithm:?}: {:?}", timed.first_wrong);
        assert!(timed.checksum.is_some());
        if algorithm.collective == Collective::AllReduce {
            let fused = gpus.device(&choice, ExecutionMode::Fused, timing, 1000).unwrap();
            assert_eq!(fused.checksum, timed.checksum, "{algorithm:?}");
        }
    }
}

/// The time limits of the parts of `gpu-check.sh` add up to at most 9 minutes, without the last parts, which may be skipped; so do
/// those of each part alone.
#[test]
fn the_parts_of_the_check_of_a_gpu_machine_fit_in_its_time() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/gpu-check.sh");
    let dry = |flags: &[&str]| {
        let output = std::process::Command::new("bash").arg(script).args(flags).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = dry(&["--dry-run"]);
    assert_eq!(code, Some(0), "{text}");
    let limit = |line: &str| -> u64 {
        line.split("up to").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    // Without Python the script prints a line about that, and has no part for PyTorch.
    let parts = text.lines().filter(|line| line.contains("up to"));
    let (last, first): (Vec<&str>, Vec<&str>) = parts.partition(|line| line.contains("compile:"));
    assert!(first.iter().map(|line| limit(line)).sum::<u64>() <= 540, "{text}");
    assert!(first.iter().any(|line| line.contains("resnet50")) && first.len() >= 13, "{text}");
    assert!(last.is_empty() || text.lines().rev().take(last.len()).all(|line| line.contains("compile:")));
    for (part, step) in [("A", "as two nodes"), ("B", "training: gpt2"), ("C", "ncu"), ("D", "racecheck")] {
        let (code, text) = dry(&["--part", part, "--dry-run"]);
        let lines = || text.lines().filter(|line| line.contains("up to") && !line.contains("compile:"));
        assert!(code == Some(0) && lines().map(limit).sum::<u64>() <= 540, "{part}: {text}");
        assert!(lines().any(|line| line.contains(step)), "{part}: {text}");
    }
    let (code, text) = dry(&["--part", "E", "--dry-run"]);
    assert!(code == Some(2) && text.lines().count() == 1 && text.contains("A, B, C or D"), "{text}");
}

/// `gpu-check.sh` on a machine with one GPU and an NCCL that does not let ranks share it, with programs that only print what the
/// real ones would: the check fails if a part's program fails, names each part that it skips, and compares the training rate with
/// PyTorch's over the steps after the warm-up.
#[test]
fn the_check_of_a_gpu_machine_fails_with_a_part_and_compares_warm_with_warm() {
    use std::os::unix::fs::PermissionsExt;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/gpu-check.sh");
    let train =
        r#"{"kind":"train","model":"mlp","ranks":1,"samples_per_s":10.0,"steady_samples_per_s":300.0}"#;
    let peer = r#"{"kind":"peer","model":"mlp","mode":"eager","samples_per_s":200.0}"#;
    let said = |bench: &str| {
        let folder = folder();
        let program = |name: &str, body: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let doctor = "printf 'cuda yes 1 GPUs (H)\\nnccl yes 2.29.1, lib\\n'";
        let trained =
            format!("*configs/mlp.toml*json*) [ $# = 7 ] && printf '%s\\n' '{train}' '{peer}' >>$7 ;; ");
        program("allfold", &format!("case \"$*\" in doctor) {doctor} ;; {trained} esac\nexit 0"));
        program("gpu", bench);
        for name in ["cuda_kernels", "collectives", "trainer"] {
            program(name, "exit 0");
        }
        std::fs::write(folder.path().join("commit"), "0\n").unwrap();
        std::fs::write(folder.path().join("nccl_direct.py"), "print('{}')\n").unwrap();
        let output = std::process::Command::new("bash").arg(script).arg(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = said("exit 0");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("SKIP bench: NCCL native, 2 ranks: ranks that share a GPU"), "{text}");
    assert!(text.lines().any(|line| line.contains("mlp") && line.ends_with("10 over all steps")), "{text}");
    assert!(text.contains("ours is 1.50 of it"), "{text}");
    let (code, text) = said("exit 7");
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(text.matches("== FAILED (7)").count(), 3, "{text}");
}
