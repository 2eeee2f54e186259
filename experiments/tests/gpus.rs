//! Every way onto a GPU, where there is none: one line that says what is missing and how to get it, and exit code 2. Where
//! there is a GPU, they are `SKIP`ped here: `scripts/gpu-check.sh` runs them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use allfold_collectives::device::Form;
use allfold_collectives::registry::{ALGORITHMS, Shape};
use allfold_collectives::{Collective, DType, ReduceOp};
use allfold_experiments::gpus::Gpus;
use allfold_experiments::measure::Timing;
use allfold_experiments::plan::Choice;
use allfold_kernels::cuda::{self, Order, Shim};
use common::{allfold, folder, said};

/// What is missing on this machine; `None` where nothing is.
fn missing(test: &str) -> Option<String> {
    match cuda::probe() {
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

/// What `bench --backend device` runs, on the shim: every algorithm is right, in both forms.
#[test]
fn every_algorithm_is_measured_and_right_on_the_shim_of_a_gpu() {
    let gpus = Gpus::over(Shim::open(Order::Upwards).unwrap());
    let timing =
        Timing { iterations: 2, warmup: 1, check: true, seed: 3, virtual_time: false, registered: true };
    for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.collective != Collective::Barrier) {
        let choice = Choice {
            collective: algorithm.collective,
            algorithm: Some(algorithm),
            shape: Shape::new(5).unwrap(),
            dtype: DType::Bf16,
            op: ReduceOp::Avg,
            segment: None,
            window: None,
            lanes: 1,
        };
        let timed = gpus.device(&choice, Form::Messages, timing, 1000).unwrap();
        assert_eq!(timed.side.wrong, Some(0), "{algorithm:?}: {:?}", timed.side.first_wrong);
        assert!(timed.side.checksum.is_some() && timed.estimate_us.is_none());
        if algorithm.collective == Collective::AllReduce {
            let fused = gpus.device(&choice, Form::Fused, timing, 1000).unwrap();
            assert_eq!(fused.side.checksum, timed.side.checksum, "{algorithm:?}");
        }
    }
}

/// The limits of all that `gpu-check.sh` runs add up to its 8 minutes, but for what comes last and may be passed over.
#[test]
fn the_parts_of_the_check_of_a_gpu_machine_fit_in_its_time() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/gpu-check.sh");
    let output = std::process::Command::new("bash").args([script, "--dry-run"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let limit = |line: &str| -> u64 {
        line.split("up to").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    // Without python there is a line that says so, and no part of PyTorch's.
    let parts = text.lines().filter(|line| line.contains("up to"));
    let (last, first): (Vec<&str>, Vec<&str>) = parts.partition(|line| line.contains("compile:"));
    assert!(first.iter().map(|line| limit(line)).sum::<u64>() <= 480, "{text}");
    assert!(first.iter().any(|line| line.contains("resnet50")) && first.len() >= 13, "{text}");
    assert!(last.is_empty() || text.lines().rev().take(last.len()).all(|line| line.contains("compile:")));
}
