//! Several algorithms at once, their plot, and the comparison of two runs.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{allfold, folder, records, said};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

fn refused(args: &[&str]) -> String {
    let output = allfold(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?} prints before it refuses");
    String::from_utf8(output.stderr).unwrap()
}

const SIMULATE: [&str; 10] =
    ["simulate", "all_reduce", "--topology", "dgx-a100", "--ranks", "16", "-b", "64K", "-e", "4M"];

#[test]
fn simulate_takes_several_algorithms_and_draws_them_with_the_bound_and_nccl() {
    let folder = folder();
    let plot = folder.path().join("sweep.svg");
    let algo = ["--algo", "ring,double_binary_tree,nccl", "-f", "8", "--plot", plot.to_str().unwrap()];
    let text = said(&[&SIMULATE[..], &algo].concat());
    assert_eq!(text.matches("Collective test concluded").count(), 3, "{text}");
    assert!(text.contains("# Plot: ") && text.contains("NCCL"), "{text}");
    let svg = fs::read_to_string(plot).unwrap();
    for name in ["ring", "double_binary_tree", "NCCL", "bound of bandwidth and latency", "64 KiB", "4 MiB"] {
        assert!(svg.contains(name), "no {name}");
    }
    let all = records(&[&SIMULATE[..], &["--algo", "ring,nccl", "-f", "8"]].concat());
    let of = |name: &str| {
        all.iter()
            .filter(|r| r["kind"] == "collective" && r["algorithm"].as_str().unwrap().contains(name))
            .count()
    };
    assert_eq!((of("ring"), of("NCCL")), (3, 3));
}

#[test]
fn what_does_not_go_with_several_algorithms_is_refused_before_a_table() {
    for (flags, hint) in [
        (&["--algo", "ring,ring"][..], "names ring twice"),
        (&["--algo", "ring,"][..], "empty name"),
        (&["--algo", "ring,rng"][..], "did you mean `ring`"),
        (&["--algo", "ring,direct", "--explain"][..], "takes one algorithm"),
        (&["--algo", "ring", "--explain"][..], "takes one size and the sweep has 7"),
        (&["--algo", "ring", "--trace", "t.json"][..], "takes one size"),
        (&["--algo", "ring,nccl", "--fault", "slow_rank=3:x4"][..], "leave it out with --algo nccl"),
        (&["-g", "2"][..], "--ranks N"),
    ] {
        let error = refused(&[&SIMULATE[..], flags].concat());
        assert!(error.contains(hint), "{flags:?}: {error}");
    }
    let two_sizes = [&SIMULATE[..], &["--algo", "ring", "-f", "64", "--plot", "/dev/null"]].concat();
    let output = allfold(&two_sizes);
    assert!(String::from_utf8_lossy(&output.stderr).contains("three sizes or more"));
}

#[test]
fn bench_takes_several_algorithms_and_draws_them() {
    let folder = folder();
    let plot = folder.path().join("bench.svg");
    let bench =
        ["bench", "all_reduce", "--backend", "threads", "--ranks", "2", "-b", "1K", "-e", "64K", "-f", "8"];
    let more = ["-n", "2", "-w", "1", "--algo", "ring,direct", "--plot", plot.to_str().unwrap()];
    let text = said(&[&bench[..], &more].concat());
    assert_eq!(text.matches("Collective test concluded").count(), 2, "{text}");
    let svg = fs::read_to_string(plot).unwrap();
    assert!(
        svg.contains("ring, 2 ranks") && svg.contains("direct, 2 ranks") && svg.contains("measured"),
        "{svg}"
    );
}

#[test]
fn a_sweep_of_simulate_makes_plots_in_a_report() {
    let folder = folder();
    let (json, out) = (folder.path().join("r.jsonl"), folder.path().join("out"));
    said(&[&SIMULATE[..], &["--algo", "ring,nccl", "-f", "8", "--json", json.to_str().unwrap()]].concat());
    said(&["report", "--from", json.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(
        page.contains("all_reduce on 16 ranks of dgx-a100, simulated") && page.contains("class=\"finding\"")
    );
    assert!(page.contains("bound of bandwidth and latency") && out.join("predicted.svg").exists());
}

#[test]
fn diff_fails_on_a_regression_and_names_the_worst_row() {
    let folder = folder();
    let file = |name: &str, algo: &str, fault: &[&str]| {
        let path = folder.path().join(name).to_str().unwrap().to_string();
        let simulate =
            ["simulate", "all_reduce", "--topology", "nodes8", "--ranks", "16", "-b", "64K", "-e", "1M"];
        let more = ["--algo", algo, "-f", "4", "--json", &path];
        said(&[&simulate[..], &more, fault].concat());
        path
    };
    let (before, same) = (file("a.jsonl", "ring", &[]), file("b.jsonl", "ring", &[]));
    let text = said(&["diff", &before, &same]);
    assert!(text.contains("0 slower, 0 faster, 3 same"), "{text}");
    // The same rows, with every time doubled.
    let slow = folder.path().join("slow.jsonl").to_str().unwrap().to_string();
    let text = fs::read_to_string(&before).unwrap();
    let doubled = text.lines().map(|line| {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        if let Some(time) = record["time_us"].as_f64() {
            record["time_us"] = (2.0 * time).into();
        }
        format!("{record}\n")
    });
    fs::write(&slow, doubled.collect::<String>()).unwrap();
    let output = allfold(&["diff", &before, &slow]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("3 rows became slower") && error.contains("+100.0 %"), "{error}");
    assert!(said(&["diff", &slow, &before]).contains("3 faster"));
    assert!(said(&["diff", &before, &slow, "--tolerance", "150%"]).contains("3 same"));
    let other = file("c.jsonl", "direct", &[]);
    let said = refused(&["diff", &before, &other]);
    assert!(
        said.contains("no row in common: the first are `") && said.contains("of the same command"),
        "{said}"
    );
    assert!(refused(&["diff", &before, "missing.jsonl"]).contains("name a file of records"));
}

#[test]
fn operations_on_threads_have_the_deadline_of_the_environment() {
    let bench = |timeout: &str, backend: &str, ranks: &str| {
        let args =
            ["bench", "all_reduce", "--backend", backend, "--ranks", ranks, "-b", "256K", "-e", "256K"];
        let command = &mut Command::new(env!("CARGO_BIN_EXE_allfold"));
        let output = command.args(args).env("ALLFOLD_TIMEOUT", timeout).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for backend in ["threads", "shm", "tcp"] {
        let (code, said) = bench("0", backend, "2");
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("ALLFOLD_TIMEOUT is `0`") && said.contains("0.001 seconds or more"), "{said}");
    }
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    let train = &mut Command::new(env!("CARGO_BIN_EXE_allfold"));
    let train = train.args(["train", "--config", config]).env("ALLFOLD_TIMEOUT", "0").output().unwrap();
    assert!(train.status.code() == Some(2) && train.stdout.is_empty(), "{train:?}");
    // So many threads cannot all have begun within a millisecond.
    let (code, said) = bench("0.001", "threads", "512");
    assert!(code == Some(1) && said.contains("deadline of 1ms exceeded"), "{code:?}: {said}");
}

/// A curve's runs on the virtual clock take a fault; modeled points do not.
#[test]
fn a_slow_rank_slows_the_simulated_points_of_a_curve() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    let scale = ["scale", "--config", config, "--topology", "switch", "--ranks", "4", "--steps", "3"];
    let step = |more: &[&str]| {
        let all = records(&[&scale[..], &["--sim-ranks", "4"], more].concat());
        let simulated = all.iter().find(|record| record["backend"] == "sim" && record["ranks"] == 4);
        simulated.unwrap()["time_us"].as_f64().unwrap()
    };
    let (plain, slow) = (step(&[]), step(&["--fault", "slow_rank=1:x4"]));
    assert!(step(&["--strategy", "zero3"]) > plain, "zero3 gathers parameters");
    assert!(slow > 2.0 * plain, "{plain} and {slow} us");
    let fault = ["--fault", "slow_rank=1:x4"];
    let nowhere = refused(&[&scale[..], &["--sim-ranks", "0"], &fault].concat());
    assert!(nowhere.contains("--fault acts in runs on the virtual clock"), "{nowhere}");
    let beyond = ["scale", "--config", config, "--ranks", "1,2,8,16", "--fault", "slow_rank=3:x4"];
    let beyond = refused(&beyond);
    assert!(beyond.contains("ranks go from 0 to 1 in the largest run on the virtual clock"), "{beyond}");
    assert!(beyond.contains("--sim-ranks 8 adds the run of 8 ranks"), "{beyond}");
    let dead = allfold(&[&scale[..], &["--sim-ranks", "4", "--fault", "dead_rank=2@60us"]].concat());
    let why = String::from_utf8_lossy(&dead.stderr);
    assert!(dead.status.code() == Some(1) && why.contains("rank 2"), "{why}");
}

/// Numbers of ranks that do not fit are named with the reason, and the others are in the table and in the records.
#[test]
fn a_number_of_ranks_that_does_not_fit_leaves_the_others() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    let training = ["scale", "--config", config, "--topology", "switch", "--steps", "2", "--ranks"];
    let pipeline = ["--strategy", "pipeline", "--set", "parallel.stages=2"];
    let nodes = ["--topology", "dgx-a100:2", "--ranks"];
    let workload = [&["scale", "workload", "resnet18"], &nodes[..]].concat();
    let collective = [&["scale", "collective", "all_reduce", "--algo", "ring"], &nodes[..]].concat();
    let why = "left out: 3 ranks: `parallel.stages` is 2, which does not divide the 3 ranks";
    for (args, more, made, hint) in [
        (&training[..], [&["2,3,4", "--sim-ranks", "4"], &pipeline[..]].concat(), &[2, 4][..], why),
        (&training[..], [&["2,3,4", "--modeled-only"], &pipeline[..]].concat(), &[2, 4], why),
        (&workload[..], vec!["8,17,32"], &[1, 8], "left out: 17 ranks: "),
        (&collective[..], vec!["8,17,32"], &[8], "left out: 17 ranks: "),
    ] {
        let args = [args, &more[..]].concat();
        let text = said(&args);
        assert!(text.contains(hint), "{args:?}: {text}");
        let simulated = records(&args).into_iter().filter(|record| record["measured"] == false);
        let ranks: BTreeSet<u64> = simulated.filter_map(|record| record["ranks"].as_u64()).collect();
        assert_eq!(ranks.into_iter().collect::<Vec<_>>(), made, "{args:?}");
    }
    let none = refused(&[&training[..], &["3,5"], &pipeline[..]].concat());
    assert!(none.contains("does not divide the 3 ranks") && none.lines().count() == 1, "{none}");
    let none = refused(&[&workload[..], &["32,64"]].concat());
    assert!(none.contains("32") && none.lines().count() == 1, "{none}");
}

/// The table of modeled times says that it is without the fault; without a fault nothing is said.
#[test]
fn modeled_times_of_a_curve_with_a_fault_say_that_they_are_without() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    let scale = ["scale", "--config", config, "--topology", "switch", "--ranks", "2", "--steps", "2"];
    let note = "the modeled times are without faults";
    let faulty = said(&[&scale[..], &["--fault", "slow_rank=1:x4"]].concat());
    assert_eq!((faulty.matches(note).count(), said(&scale).matches(note).count()), (1, 0), "{faulty}");
}

/// The title of a curve says what is trained; two keys that change its times more than a reader expects are named.
#[test]
fn a_curve_says_what_is_trained_and_names_keys_that_slow_it() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    let scale = ["scale", "--config", config, "--ranks", "2", "--topology", "switch", "--modeled-only"];
    let batch = ["--set", "training.batch=32"];
    let text = said(&[&scale[..], &batch, &["--strategy", "pipeline", "--device", "h100"]].concat());
    let title = "mlp (f32) by pipeline, 32 samples of the ranks that share samples in a step: simulated on switch of h100, modeled\n";
    assert!(text.contains(title), "{text}");
    assert!(text.contains("leaves all stages but one idle: --set training.accumulate=N"), "{text}");
    assert!(text.contains("h100 means f16 on tensor cores, and the configuration computes in f32"), "{text}");
    let micro = ["--strategy", "pipeline", "--set", "training.accumulate=8", "--device", "h100_f32"];
    let amp = ["--device", "h100", "--set", "precision.amp=f16"];
    for (flags, title) in [
        (&micro[..], "mlp (f32) by pipeline, 32 samples of the ranks that share samples in a step: "),
        (&amp[..], "mlp (amp f16) by ddp, 32 samples of a rank in a step: "),
    ] {
        let text = said(&[&scale[..], &batch, flags].concat());
        assert!(text.contains(title) && !text.contains("idle") && !text.contains("tensor cores"), "{text}");
    }
}

/// Regression: of two files one was named.
#[test]
fn every_file_that_a_curve_of_a_workload_writes_is_named() {
    let folder = folder();
    let [plot, page] = ["curve.svg", "curve.html"].map(|name| folder.path().join(name).display().to_string());
    let scale = ["scale", "workload", "resnet50", "--ranks", "1,2,4", "--topology", "dgx-a100"];
    let text = said(&[&scale[..], &["--plot", &plot, "--html", &page]].concat());
    assert!(text.contains(&format!("plot: {plot}\n")) && text.contains(&format!("page: {page}\n")), "{text}");
}

#[test]
fn a_version_of_nccl_that_is_newer_than_all_known_rules_is_a_note() {
    let call = ["simulate", "all_reduce", "--topology", "dgx-a100", "--ranks", "8", "-b", "8", "-e", "8"];
    let notes = |version: &str| {
        let flags = ["--algo", "nccl", "--nccl-version", version];
        String::from_utf8(allfold(&[&call[..], &flags].concat()).stderr).unwrap()
    };
    assert!(notes("99.99").contains("note: NCCL 99.99 is newer than NCCL 2.29"), "{}", notes("99.99"));
    assert!(!notes("2.29").contains("newer"));
}
