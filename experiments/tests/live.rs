//! The lines of progress that a command prints while it runs, and what an interrupted run leaves.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(unix)]

mod common;

use common::folder;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");

fn started(args: &[&str]) -> Child {
    // The tests themselves may run where SIGHUP is ignored, as under `nohup`, which children inherit.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_allfold")]);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A training run of very many epochs.
fn endless(json: &Path) -> Child {
    let json = json.to_str().unwrap();
    started(&["train", "--config", MLP, "--set", "training.epochs=100000", "--json", json])
}

/// The first line that a command prints, which then is ended, or nothing; and its exit code and errors.
fn opening(args: &[&str]) -> (String, Option<i32>, String) {
    let (mut child, mut line, mut error) = (started(args), String::new(), String::new());
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if !line.is_empty() {
        child.kill().unwrap();
    }
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    (line, child.wait().unwrap().code(), error)
}

#[test]
fn a_watch_refuses_a_folder_that_is_missing_and_says_why_it_cannot_read_dumps() {
    let folder = folder();
    let [missing, dumps] = ["missing", "dumps"].map(|name| folder.path().join(name));
    let watch = |path: &Path| opening(&["triage", "--watch", path.to_str().unwrap()]);
    let (line, code, error) = watch(&missing);
    assert_eq!((&*line, code), ("", Some(2)));
    assert!(
        error.contains("missing: there is no such file or folder") && error.lines().count() == 1,
        "{error}"
    );
    fs::create_dir(&dumps).unwrap();
    assert_eq!(watch(&dumps).0, "waiting for dumps\n");
    for name in ["nccl_trace_rank_0", "again_rank_0"] {
        fs::write(dumps.join(name), r#"{"version": "2.10", "pg_config": {}, "entries": []}"#).unwrap();
    }
    let (line, ..) = watch(&dumps);
    assert!(line.starts_with("waiting for dumps; now: ") && line.contains("two flight records"), "{line}");
}

/// Ends a run by SIGKILL once its file has whole records, `part` of a record among them.
fn kill_after_a_record(mut child: Child, json: &Path, part: &str) {
    while !fs::read_to_string(json).is_ok_and(|text| text.ends_with('\n') && text.contains(part)) {
        assert_eq!(child.try_wait().unwrap(), None, "the run has ended");
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

fn interrupt(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

fn first_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line
}

/// Reads lines until one contains `what`, and returns that line. What a run prints before depends on how busy the machine is.
fn line_with(from: &mut impl BufRead, what: &str) -> String {
    loop {
        let line = first_line(from);
        assert!(!line.is_empty(), "no line has `{what}`");
        if line.contains(what) {
            return line;
        }
    }
}

fn kinds(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_training_run_is_heard_at_once_and_an_interrupted_one_leaves_what_it_did() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let folder = folder();
        let json = folder.path().join("part.jsonl");
        let mut child = endless(&json);
        let mut text = BufReader::new(child.stdout.take().unwrap());
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (head, data) = (first_line(&mut text), first_line(&mut text));
        assert!(
            data.starts_with("1797 samples of 1 x 8 x 8 in 10 classes: 1437 to train on, 360 "),
            "{data}"
        );
        assert!(head.starts_with("mlp with ") && head.contains("parameters, ddp, 1 rank, "), "{head}");
        let line = line_with(&mut log, " of 4500000 steps, loss ");
        assert!(line.contains(" in step ") && line.contains(", lr 0.") && line.contains(" so far"), "{line}");
        interrupt(&child, signal);
        let mut rest = String::new();
        text.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{rest}");
        assert!(rest.starts_with("interrupted after ") && rest.contains(" steps: loss "), "{rest}");
        let mut records = kinds(&json);
        let last = records.pop().unwrap();
        assert_eq!(
            (&last["kind"], &last["measured"], &last["ranks"]),
            (&"train_progress".into(), &true.into(), &1.into())
        );
        assert!(last["step"].as_u64().unwrap() > 0 && last["loss"].is_number(), "{last}");
        assert!(last["lr"].as_f64().unwrap() > 0.0, "{last}");
        records.retain(|record| record["kind"] == "train");
        let made: Vec<_> = records.iter().map(|record| record["step"].as_u64().unwrap()).collect();
        // The last step of an epoch is written with its score, which an interrupted run may not have.
        let end = last["step"].as_u64().unwrap()
            + u64::from(!(last["step"].as_u64().unwrap() + 1).is_multiple_of(45));
        assert_eq!(made, (0..end).collect::<Vec<_>>());
        assert!(
            end <= last["step"].as_u64().unwrap() || records[end as usize - 1]["loss"] == last["loss"],
            "{last}"
        );
    }
}

/// The checkpoint that the last line of an interrupted run names is of the step that the line names.
#[test]
fn a_run_that_is_told_to_stop_writes_a_checkpoint_of_its_last_step() {
    let launched = ["launch", "-n", "2", "--grace", "1000", "--rdzv-timeout", "1000", "--"];
    for (before, signal, code) in [
        (&[][..], Signal::HUP, 129),
        (&[], Signal::USR1, 138),
        (&[], Signal::TERM, 143),
        (&launched, Signal::TERM, 143),
        (&launched, Signal::INT, 130),
        (&launched, Signal::USR1, 138),
    ] {
        let folder = folder();
        let dir = format!("checkpoint.dir={}", folder.path().display());
        let keys = ["--set", &dir, "--set", "checkpoint.every=1000000", "--set", "training.epochs=100000"];
        let mut child = started(&[before, &["train", "--config", MLP], &keys].concat());
        let text = BufReader::new(child.stdout.take().unwrap());
        line_with(&mut BufReader::new(child.stderr.take().unwrap()), " steps, loss ");
        interrupt(&child, signal);
        let said = text.lines().map(Result::unwrap).last().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{before:?} {signal:?}: {said}");
        let step = said.split("interrupted after ").nth(1).unwrap();
        let step: u64 = step.split(' ').next().unwrap().parse().unwrap();
        let file = folder.path().join(format!("step-{step:08}.safetensors"));
        assert!(
            file.exists() && said.ends_with(&format!("the newest checkpoint is {}", file.display())),
            "{said}"
        );
    }
}

/// The shell's `nohup` lets a program ignore SIGHUP, and a run without checkpoints has no use for SIGUSR1.
#[test]
fn a_run_ends_by_a_hang_up_with_a_summary_unless_the_caller_ignores_it() {
    let endless = ["train", "--config", MLP, "--set", "training.epochs=100000"];
    let mut child = started(&endless);
    first_line(&mut BufReader::new(child.stderr.take().unwrap()));
    interrupt(&child, Signal::HUP);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(129), "{said}");
    assert!(said.lines().last().unwrap().starts_with("interrupted after "), "{said}");
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_allfold")).args(endless).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    while !first_line(&mut log).contains(" steps, ") {}
    interrupt(&child, Signal::HUP);
    assert!(first_line(&mut log).contains(" steps, "));
    interrupt(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Records of steps are in the file during the run: a run that SIGKILL ends leaves them.
#[test]
fn a_run_that_is_killed_leaves_the_records_of_its_steps() {
    let folder = folder();
    let json = folder.path().join("part.jsonl");
    let child = endless(&json);
    kill_after_a_record(child, &json, r#""kind":"train","#);
    let records = kinds(&json);
    let first = records.iter().find(|record| record["kind"] == "train").unwrap();
    assert_eq!(first["step"], 0);
}

/// A run that resumes appends no step that the file has: of its checkpoint, or later ones of the run before. Another run's steps count
/// for nothing.
#[test]
fn a_resumed_run_appends_each_step_once() {
    let folder = folder();
    let json = folder.path().join("runs.jsonl");
    let run = |more: &[&str]| {
        let dir = format!("checkpoint.dir={}", folder.path().join("checkpoints").display());
        let keys = ["--set", &dir, "--set", "checkpoint.every=5", "--json", json.to_str().unwrap()];
        let end = started(&[&["train", "--config", MLP, "--ranks", "2"], &keys[..], more].concat());
        assert!(end.wait_with_output().unwrap().status.success());
        let all = kinds(&json).into_iter().filter(|record| record["kind"] == "train");
        all.map(|record| (record["step"].as_u64().unwrap(), record["loss"].as_f64().unwrap()))
            .collect::<Vec<_>>()
    };
    let other = run(&["--steps", "9", "--set", "checkpoint.every=0", "--set", "optimiser.lr=0.5"]);
    let first = run(&["--steps", "7"]);
    assert_eq!((other.len(), first.len()), (9, 16));
    fs::remove_file(folder.path().join("checkpoints/step-00000007.safetensors")).unwrap();
    let resume = ["--set", "checkpoint.resume=true"];
    let resumed = run(&[&["--steps", "30"][..], &resume].concat());
    assert_eq!(resumed[..16], first);
    assert_eq!(resumed[9..].iter().map(|(step, _)| *step).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    assert_eq!(run(&[&["--steps", "30"][..], &resume].concat()), resumed, "no step was left");
    // A file without them gets the steps of the checkpoint too, with the score of the epoch that ended.
    fs::remove_file(&json).unwrap();
    assert_eq!(run(&[&["--steps", "31"][..], &resume].concat())[..30], resumed[9..]);
    assert!(kinds(&json)[22]["scores"].is_object());
}

/// A curve whose last point fails leaves the records of the points before; a curve whose last point does not fit is complete without it.
#[test]
fn a_curve_that_fails_has_recorded_the_points_before() {
    let training = ["scale", "--config", MLP, "--ranks", "1,2", "--steps", "2", "--topology", "switch"];
    let dead = ["--sim-ranks", "2", "--fault", "dead_rank=1@1us"];
    let nodes = ["--topology", "dgx-a100:2", "--ranks", "8,16,32"];
    for (args, code, made) in [
        ([&training[..], &dead].concat(), 1, &[1][..]),
        ([&["scale", "collective", "all_reduce", "--algo", "ring"], &nodes[..]].concat(), 0, &[8, 16]),
        ([&["scale", "workload", "resnet50"], &nodes[..]].concat(), 0, &[1, 8, 16]),
    ] {
        let folder = folder();
        let json = folder.path().join("part.jsonl");
        let output = started(&[&args[..], &["--json", json.to_str().unwrap()]].concat());
        let output = output.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        let simulated = kinds(&json).into_iter().filter(|record| record["measured"] == false);
        let ranks: Vec<u64> = simulated.map(|record| record["ranks"].as_u64().unwrap()).collect();
        assert_eq!(ranks, made, "{args:?}");
    }
}

/// The records of a run's rows are in the file before the rows of the next run are predicted.
#[test]
fn a_validation_that_is_killed_leaves_the_records_of_the_runs_before() {
    let folder = folder();
    let small = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/runs/v100x1_2n_p3dn_all_reduce.json");
    let json = folder.path().join("part.jsonl");
    let child = started(&["validate", small, &large_run(folder.path()), "--json", json.to_str().unwrap()]);
    kill_after_a_record(child, &json, r#""kind":"validate""#);
    let records = kinds(&json);
    assert_eq!(records[0]["kind"], "validate");
    assert!(records.iter().all(|record| record["nodes"] == 2), "the second run was predicted as well");
}

/// Writes a measured run of 4,096 nodes that takes seconds to predict, and returns its path.
fn large_run(folder: &Path) -> String {
    let path = folder.join("large.json");
    let rows: Vec<_> =
        (0..400).map(|row| json!({"bytes": (1 << 30) + (row << 20), "time_us": 1e4})).collect();
    let hardware = json!({"gpu": "H100 80GB HBM3", "gpus_per_node": 8, "intra_node": "NVLink4 NVSwitch",
        "inter_node": "8x400Gb/s IB NDR", "nodes": 4096});
    let large = json!({"hardware": hardware, "collective": "all_reduce", "dtype": "float", "ranks": 32_768, "rows": rows});
    fs::write(&path, large.to_string()).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn a_long_wait_is_told_on_standard_error() {
    let folder = folder();
    let run = large_run(folder.path());
    for (args, begins) in [
        (&["validate", run.as_str()][..], "predicting calls: "),
        (&["verify", "all_reduce", "--algo", "ring", "--ranks", "1024"], "proving: 0 of 1, "),
        (&["train", "--config", MLP, "--ranks", "3000", "--set", "training.batch=1"], " steps, "),
        (
            &["compare", "--config", MLP, "--ranks", "64", "--steps", "500", "--strategies", "zero1"],
            "run 1 of 2, zero1 on sim: ",
        ),
        (
            &[
                "bench",
                "all_reduce",
                "--backend",
                "threads",
                "--ranks",
                "128",
                "-b",
                "1M",
                "-e",
                "1M",
                "-n",
                "2000",
            ],
            "all_reduce, 1 MiB",
        ),
    ] {
        let mut child = started(args);
        let line = first_line(&mut BufReader::new(child.stderr.take().unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(line.contains(begins) && line.trim_end().ends_with("so far"), "{args:?}: {line}");
    }
}

/// `-v` adds what a run does, with time, level and rank; other ranks log less than rank 0, and `-vv` logs each operation.
#[test]
fn a_verbose_run_says_what_it_does_and_rank_0_says_most() {
    let said = |flag: &str| {
        let args = ["train", "--config", MLP, "--ranks", "2", "--steps", "2", "--backend", "threads", flag];
        let output = started(&args).wait_with_output().unwrap();
        assert!(output.status.success());
        // Without the lines of progress of a run that takes longer than two seconds.
        let said = String::from_utf8(output.stderr).unwrap();
        said.lines()
            .filter(|line| !line.contains(" so far"))
            .fold(String::new(), |all, line| all + line + "\n")
    };
    let count = |text: &str, what: &str| text.lines().filter(|line| line.contains(what)).count();
    let debug = said("-v");
    assert_eq!((count(&debug, "DEBUG rank 0: has "), count(&debug, "rank 1: ")), (1, 0), "{debug}");
    assert!(debug.lines().all(|line| line.contains("Z ")) && count(&debug, "TRACE") == 0, "{debug}");
    let trace = said("-vv");
    assert_eq!((count(&trace, "DEBUG rank 0: has "), count(&trace, "DEBUG rank 1: has ")), (1, 1), "{trace}");
    assert!(count(&trace, "TRACE rank 0: all_reduce(") > 0 && count(&trace, "TRACE rank 1") == 0, "{trace}");
    for (args, what) in [
        (
            &["verify", "all_reduce", "--algo", "ring", "--ranks", "4", "-v"][..],
            "proved all_reduce by ring over 4",
        ),
        (&["scale", "workload", "resnet18", "--ranks", "8", "-v"], "a step of 8 ranks takes"),
        (
            &["scale", "collective", "all_reduce", "--algo", "ring", "--ranks", "8", "-v"],
            "ring over 8 ranks takes",
        ),
    ] {
        let output = started(args).wait_with_output().unwrap();
        assert_eq!(count(&String::from_utf8(output.stderr).unwrap(), what), 1, "{args:?}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_allfold"));
    let wrong = command.arg("doctor").env("ALLFOLD_LOG", "loud").output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("there are warn, info, debug, trace"));
}

/// With `-q` no progress is printed on standard error, however long the run takes. This run ends after a few seconds.
#[test]
fn a_quiet_run_tells_no_progress() {
    let args = ["verify", "-q", "all_reduce", "--algo", "ring", "--ranks", "900"];
    let output = started(&args).wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A step of several seconds is completed before the run ends: a line reports at once that the signal has arrived.
#[test]
#[allow(clippy::disallowed_methods, reason = "a moment within the first step")]
fn an_interruption_that_takes_effect_later_is_heard_at_once() {
    let long = [
        "train",
        "--config",
        MLP,
        "--set",
        "model.hidden=[4096,4096]",
        "--set",
        "training.batch=256",
        "--steps",
        "50",
    ];
    let mut child = started(&long);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    assert!(first_line(&mut out).starts_with("mlp with"));
    // A step is under way, and the line about the signal comes before the run's other output.
    let mut log = BufReader::new(child.stderr.take().unwrap());
    line_with(&mut log, " steps, ");
    interrupt(&child, Signal::INT);
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted: what is under way is ended first"), "{said}");
}

/// Ranks that wait for a rank that hangs never end their step: the first signal ends the run. Rank 0 hangs here because it writes to a
/// log that nobody reads.
#[test]
#[allow(clippy::disallowed_methods, reason = "polls a process that may hang")]
fn a_run_that_hangs_ends_by_the_first_signal() {
    let train = ["train", "--config", MLP, "--ranks", "2", "--set", "training.epochs=100000"];
    let mut child = started(&[&train[..], &["--backend", "threads", "-vv"]].concat());
    let log = child.stderr.take().unwrap();
    // The pipe is full once it holds kilobytes and nothing more is written into it.
    let (mut held, mut looks) = (0, 0);
    while looks < 20 || held < 4_000 {
        let before = std::mem::replace(&mut held, rustix::io::ioctl_fionread(&log).unwrap());
        looks = if before == held { looks + 1 } else { 0 };
        thread::sleep(Duration::from_millis(20));
    }
    interrupt(&child, Signal::INT);
    for _ in 0..60_000 {
        if child.try_wait().unwrap().is_some() {
            let end = child.wait_with_output().unwrap();
            let said = String::from_utf8(end.stdout).unwrap();
            assert_eq!(end.status.code(), Some(130), "{said}");
            assert!(said.lines().last().unwrap().starts_with("interrupted after "), "{said}");
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("the run hangs on");
}

#[test]
fn an_interrupted_report_has_the_parts_that_were_done_and_after_two_signals_nothing() {
    let folder = folder();
    for (name, twice) in [("once", false), ("twice", true)] {
        let out = folder.path().join(name).join("report");
        let mut child = started(&["report", "--quick", "--out", out.to_str().unwrap()]);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let line = first_line(&mut output);
        assert!(line.starts_with("proofs "), "{line}");
        interrupt(&child, Signal::INT);
        // A signal that arrives before the first one was handled counts as the same signal.
        while twice && child.try_wait().unwrap().is_none() {
            interrupt(&child, Signal::INT);
            thread::yield_now();
        }
        let end = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&end.stderr);
        if twice {
            assert!(!end.status.success());
            assert!(!folder.path().join(name).exists());
        } else {
            assert_eq!(end.status.code(), Some(130), "{said}");
            let page = fs::read_to_string(out.join("report.html")).unwrap();
            assert!(page.contains("id=\"proofs\"") && !page.contains("id=\"predicted\""));
            assert!(said.contains("of 8 parts") && page.contains("(interrupted after "), "{said}");
        }
    }
}
