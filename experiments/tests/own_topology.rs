//! A topology of one's own, from a file: numbers of ranks that it does not have, and notes on what has no effect.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{allfold, folder, said};
use std::fs;

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");

/// Two leaf switches with two ranks each, below a spine.
const GRAPH: &str = "kind = \"graph\"\nswitches = [\"leaf0\", \"leaf1\", \"spine\"]\n\
    [[link]]\nfrom = [0, 1]\nto = \"leaf0\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n\
    [[link]]\nfrom = [2, 3]\nto = \"leaf1\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n\
    [[link]]\nfrom = [\"leaf0\", \"leaf1\"]\nto = \"spine\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";

/// `single` takes one rank, which a file with `ranks` and a graph do not have.
#[test]
fn a_comparison_leaves_single_out_where_the_file_has_no_single_rank() {
    let folder = folder();
    let path = folder.path().join("own.toml");
    let fixed = "kind = \"switch\"\nranks = 4\n[device]\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";
    for (text, why) in [(GRAPH, "rank 1 does not exist"), (fixed, "this topology joins 4 ranks, not 1")] {
        fs::write(&path, text).unwrap();
        let all = ["compare", "--config", MLP, "--ranks", "4", "--strategies", "single,ddp,zero1"];
        let text = said(&[&all[..], &["--modeled-only", "--topology", path.to_str().unwrap()]].concat());
        let line = text.lines().find(|line| line.starts_with("left out: single: ")).expect(&text);
        assert!(line.contains("it runs on 1 rank, and ") && line.contains(why), "{line}");
        assert!(text.contains(": 2 ways to train"), "{text}");
    }
}

/// Where a file has no single rank, efficiency is relative to the fewest ranks, and the reason is that of the file.
#[test]
fn a_curve_without_one_rank_says_what_its_efficiency_is_relative_to() {
    let folder = folder();
    let path = folder.path().join("own.toml");
    fs::write(&path, GRAPH).unwrap();
    let on = ["--topology", path.to_str().unwrap(), "--ranks"];
    let workload = ["scale", "workload", "resnet18"];
    let config = ["scale", "--config", MLP, "--modeled-only"];
    for curve in [&workload[..], &config[..]] {
        for ranks in ["1,4", "4"] {
            let text = said(&[curve, &on[..], &[ranks]].concat());
            let line = text.lines().find(|line| line.starts_with("efficiency is relative to ")).expect(&text);
            assert!(
                line.contains("to 4 ranks, as 1 rank is left out: ") && line.contains("own.toml"),
                "{line}"
            );
            assert!(!line.contains("strategy"), "{line}");
        }
        let text = said(&[curve, &["--topology", "switch", "--ranks", "1,4"]].concat());
        assert!(!text.contains("efficiency is relative to"), "{text}");
    }
    let pipeline = ["--strategy", "pipeline", "--set", "parallel.stages=2", "--ranks", "2,4"];
    let text = said(&[&config[..], &["--topology", "switch"], &pipeline].concat());
    let line = text.lines().find(|line| line.starts_with("efficiency is relative to 2 ranks")).expect(&text);
    assert!(line.contains("stages"), "{line}");
}

/// A fault on a link that no message of the call crosses gets a note; a fault on a link in use gets none.
#[test]
fn a_fault_on_a_link_that_no_message_crosses_is_a_note() {
    let folder = folder();
    let path = folder.path().join("own.toml");
    // The second link from leaf1 to the spine is never taken.
    let twice = "[[link]]\nfrom = \"leaf0\"\nto = \"leaf1\"\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n";
    fs::write(&path, format!("{GRAPH}{twice}")).unwrap();
    let call =
        ["simulate", "all_reduce", "--algo", "ring", "--ranks", "4", "-b", "64K", "-e", "256K", "-f", "4"];
    for (rule, idle) in [("slow_link=leaf1>spine[0]:x10", true), ("slow_link=leaf0>leaf1[0]:x10", false)] {
        let output = allfold(&[&call[..], &["--topology", path.to_str().unwrap(), "--fault", rule]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        let note = format!("no message of this call crosses a link of `{rule}`");
        assert_eq!(error.contains(&note), idle, "{rule}: {error}");
    }
}

/// A fault that begins after the end of the call or run gets a note; the same fault during it gets none.
#[test]
fn a_fault_after_the_end_is_a_note() {
    let call = ["simulate", "all_reduce", "--ranks", "4", "--topology", "switch", "-b", "1M", "-e", "1M"];
    let train = ["train", "--config", MLP, "--ranks", "4", "--backend", "sim", "--steps", "1"];
    for command in [&call[..], &train[..]] {
        for (rule, late) in
            [("dead_rank=3@9s", true), ("slow_rank=1:x4@9s..", true), ("slow_rank=1:x4@0ms..", false)]
        {
            let output = allfold(&[command, &["--fault", rule]].concat());
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(error.contains(" begins after the end, and has no effect"), late, "{rule}: {error}");
        }
    }
}

/// A GPU of one's own is that of the ranks in every command, and has a name as other GPUs do.
#[test]
fn a_topology_file_describes_a_gpu_of_ones_own() {
    let folder = folder();
    let path = folder.path().join("own.toml");
    let gpu = "[gpu]\nname = \"Own Y1\"\nf32 = 80\nf16 = 1200\nmemory = \"4 TB/s\"\ncapacity = 96\n";
    fs::write(
        &path,
        format!("kind = \"switch\"\n[device]\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n{gpu}"),
    )
    .unwrap();
    let on = ["--topology", path.to_str().unwrap()];
    let modeled = ["--config", MLP, "--ranks", "2", "--modeled-only"];
    let trained = ["train", "--config", MLP, "--ranks", "2", "--backend", "sim", "--steps", "2"];
    for (command, says) in [
        ([&["scale", "workload", "resnet18", "--ranks", "2"], &on[..]].concat(), "of Own Y1: weak scaling"),
        ([&["scale"], &modeled[..], &on].concat(), "owny1_f32"),
        ([&["scale"], &modeled[..], &on, &["--device", "own-y1"]].concat(), "owny1"),
        ([&["compare"], &modeled[..], &on, &["--strategies", "ddp"]].concat(), "owny1_f32"),
        ([&trained[..], &on].concat(), "owny1_f32"),
    ] {
        let text = said(&command);
        assert!(text.contains(says), "{command:?}: {text}");
    }
    let wrong = gpu.replace("96", "-1");
    fs::write(
        &path,
        format!("kind = \"ring\"\n[device]\nbandwidth = \"25 GB/s\"\nlatency = \"1 us\"\n{wrong}"),
    )
    .unwrap();
    let refused = allfold(&[&["scale"], &modeled[..], &on].concat());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && error.contains("capacity = -1 is not possible"), "{error}");
}
