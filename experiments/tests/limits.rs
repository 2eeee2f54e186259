//! Every numeric flag and every numeric key at extreme values: the command ends with exit code 0 or 2, within a limit on its processor
//! time and its memory, and no number makes it panic. Flags come from the command line's own definition and keys from the list that
//! `allfold train --keys` prints, so that a new one is tried too.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_os = "linux")]

mod common;

use allfold_experiments::commands::dispatch::Cli;
use allfold_report::sizes::{RankCounts, Size};
use allfold_sim::Picos;
use allfold_trainer::Config;
use clap::{Arg, Command, CommandFactory};
use common::{folder, says};
use std::any::TypeId;
use std::process::Output;
use std::time::Duration;

const EXTREMES: [&str; 12] = [
    "0",
    "-1",
    "1",
    "2147483648",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "NaN",
    "inf",
    "1e-320",
];

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");

/// Runs the command in a folder of its own, with 60 s of processor time and 8 GiB of address space at most.
fn limited(words: &[String]) -> Output {
    let folder = folder();
    let script = "ulimit -t 60; ulimit -v 8388608; exec \"$@\"";
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_allfold")])
        .args(words)
        .current_dir(folder.path())
        .output()
        .unwrap()
}

/// Checks that a command has succeeded, or has refused its input in one line.
fn ends_well(words: &[String], also: Option<i32>) {
    let output = limited(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 2)) || code == also && also.is_some(), "{words:?}: {code:?}: {said}");
    assert!(!said.contains("panicked"), "{words:?}: {said}");
    if code == Some(2) {
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(matches!(errors[..], [line] if line.len() < 1000), "{words:?}: {said}");
    }
}

/// What to try for a value of this type; empty if the type is no number.
fn values(arg: &Arg) -> Vec<String> {
    let is = |of: TypeId| arg.get_value_parser().type_id() == of;
    let numbers = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<f64>(),
        TypeId::of::<Duration>(),
    ];
    let with = |ends: &[&str]| {
        EXTREMES.iter().flat_map(|number| ends.iter().map(move |end| end.replace('#', number))).collect()
    };
    match () {
        () if !arg.get_action().takes_values() => Vec::new(),
        () if numbers.into_iter().any(is) => with(&["#"]),
        () if is(TypeId::of::<Picos>()) => with(&["#", "#ps", "#s"]),
        () if is(TypeId::of::<Size>()) => with(&["#", "#P"]),
        () if is(TypeId::of::<RankCounts>()) => with(&["#", "1..#", "1,#"]),
        () => Vec::new(),
    }
}

/// A short run of each command that has numeric flags: its positional arguments, and its flags.
fn run_of(command: &str) -> (&'static str, &'static str) {
    match command {
        "verify" => ("barrier", ""),
        "show" => ("broadcast", "--algo chain --ranks 2"),
        "bench" => {
            ("all_reduce", "--backend threads --ranks 2 --minbytes 8 --maxbytes 8 --iters 1 --warmup_iters 0")
        }
        "simulate" => ("all_reduce", "--topology switch --ranks 2 --minbytes 8 --maxbytes 8"),
        "faults" => ("", "--schedules 1"),
        "train" => ("", "--config MLP --ranks 1 --steps 1 --set data.name=synthetic"),
        "compare" => ("", "--config MLP --ranks 1 --strategies ddp --modeled-only"),
        "scale" => ("", "--config MLP --ranks 1 --modeled-only"),
        "scale workload" => ("gpt2-xl", "--ranks 1"),
        "scale collective" => ("all_reduce", "--algo ring --ranks 2 --size 8"),
        "plan" => ("llama3-8b", "--gpus 8"),
        "launch" => ("", "--ranks 1 -- true"),
        "hangs" => ("", "--cases 1"),
        "triage" => ("no/such/folder", ""),
        "predict" => ("no/such/checkpoint no/such/picture.png", ""),
        "diff" => ("no/such/file no/such/file", ""),
        "validate" | "why" => ("no/such/file", ""),
        "calibrate" => ("no/such/file", "--out no/such/folder/o.toml"),
        other => panic!("`allfold {other}` has a numeric flag: add a short run of it to this test"),
    }
}

/// More flags that a numeric flag goes with.
fn goes_with(flag: &str) -> &'static str {
    match flag {
        "fault-seed" => "--backend sim --fault slow_rank=0:x2",
        "trace-step" => "--trace TRACE",
        "ranks-per-host" => "--backend tcp",
        _ => "",
    }
}

/// Commands and their subcommands that the help shows, with their full names.
fn shown(command: &Command, name: &str, all: &mut Vec<(String, Command)>) {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        let name = format!("{name} {}", inner.get_name()).trim().to_string();
        all.push((name.clone(), inner.clone()));
        shown(inner, &name, all);
    }
}

#[test]
fn no_numeric_flag_takes_a_number_that_the_command_cannot_bear() {
    let (folder, mut all, mut tried) = (folder(), Vec::new(), 0);
    shown(&Cli::command(), "", &mut all);
    let place = |word: &str| match word {
        "MLP" => MLP.to_string(),
        "TRACE" => folder.path().join("trace.json").display().to_string(),
        word => word.to_string(),
    };
    for (name, command) in &all {
        for arg in command.get_arguments().filter(|arg| !values(arg).is_empty()) {
            let flag = arg.get_long().unwrap_or_else(|| panic!("{name}: {arg} has no long name"));
            let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
            let words =
                arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.contains('|')));
            assert!(
                words || help.contains(" to "),
                "{name} --{flag}: the help does not give the range: {help}"
            );
            let (positional, flags) = run_of(name);
            let (flags, rest) = flags.split_once(" -- ").map_or((flags, ""), |(flags, rest)| (flags, rest));
            // Flags that the numeric one goes with replace the usual ones; clap refuses a flag that is given twice.
            let with: Vec<&str> = goes_with(flag).split_whitespace().collect();
            let words: Vec<&str> = flags.split_whitespace().collect();
            let pairs = words.chunk_by(|_, next| !next.starts_with("--"));
            let kept = pairs.filter(|pair| pair[0] != format!("--{flag}") && !with.contains(&pair[0]));
            let before: Vec<&str> = name.split(' ').chain(positional.split_whitespace()).collect();
            for value in values(arg) {
                let mut words: Vec<String> = before.iter().map(|word| word.to_string()).collect();
                words.push(format!("--{flag}={value}"));
                words.extend(kept.clone().flatten().chain(&with).map(|word| place(word)));
                words.extend(["--".to_string(), rest.to_string()].into_iter().filter(|_| !rest.is_empty()));
                // A deadline may be so short that the collective misses it.
                ends_well(&words, Some(1).filter(|_| flag == "deadline"));
                tried += 1;
            }
        }
    }
    assert!(tried > 500, "{tried}");
}

/// Each of these ended in an abort, or took minutes, and said nothing.
#[test]
fn numbers_that_had_no_limit_are_refused_with_one() {
    for many in ["1025", "4294967296", "99999999999"] {
        says(&["show", "all_reduce", "--algo", "ring", "--ranks", many], &["too many", "the most are 10"]);
        says(&["verify", "all_reduce", "--algo", "ring", "--ranks", many], &["too many", "the most are 10"]);
    }
    let compare =
        ["compare", "--config", MLP, "--strategies", "pipeline", "--ranks", "2", "--modeled-only", "--set"];
    says(&[&compare[..], &["training.accumulate=2147483648"]].concat(), &["it must be 1 to 65536"]);
    let simulate = ["simulate", "all_to_all", "--topology", "mesh", "--ranks"];
    says(&[&simulate[..], &["2147483648"]].concat(), &["the most are 1048576"]);
    says(&[&simulate[..], &["1048576"]].concat(), &["more than 2^32 links", "use fewer ranks"]);
    let collective = ["scale", "collective", "all_reduce", "--algo", "ring", "--ranks", "2", "--segment"];
    says(&[&collective[..], &["0"]].concat(), &["1 byte or more"]);
}

/// The keys that hold numbers, with the number of values of a list; from the documented file.
fn numeric_keys() -> Vec<(String, Option<usize>)> {
    let (mut table, mut keys, mut limited) = (String::new(), Vec::new(), false);
    for line in Config::documented().lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            table = format!("{name}.");
        } else if line.starts_with('#') {
            limited |= line.starts_with("# Limits: ");
        } else if let Some((key, value)) = line.split_once(" = ") {
            let is_number = |value: &str| value.parse::<f64>().is_ok();
            let list = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
            let items: Option<Vec<&str>> = list.map(|list| list.split(", ").collect());
            let numbers = is_number(value) || items.as_ref().is_some_and(|items| is_number(items[0]));
            assert!(!numbers || limited, "{table}{key} = {value}: the list of keys does not give its limits");
            if limited {
                keys.push((format!("{table}{key}"), items.map(|items| items.len())));
            }
            limited = false;
        }
    }
    keys
}

#[test]
fn no_numeric_key_takes_a_number_that_a_run_cannot_bear() {
    let (keys, mut ran) = (numeric_keys(), 0);
    assert!(keys.len() > 70, "{keys:?}");
    for (key, list) in keys {
        for value in EXTREMES.map(str::to_lowercase) {
            let value = list.map_or(value.clone(), |count| format!("[{}]", vec![value; count].join(", ")));
            let mut config = Config::default();
            let taken = config.set(&key, &value).is_ok() && allfold_trainer::config::check(&config).is_ok();
            let small =
                ["data.name=synthetic", "data.synthetic_samples=8", "training.batch=2", "training.epochs=1"];
            let mut words: Vec<String> = ["train", "--config", MLP, "--steps", "1"].map(String::from).into();
            let small = small.iter().filter(|set| !set.starts_with(&format!("{key}=")));
            for set in small.map(|set| set.to_string()).chain([format!("{key}={value}")]) {
                words.extend(["--set".to_string(), set]);
            }
            // A value that the checks take is also run with; one that they refuse is refused by the command in the same way.
            if taken {
                // A rate or a factor may be so large that the run diverges.
                ends_well(&words, Some(65));
                ran += 1;
            }
        }
    }
    assert!(ran > 100, "{ran}");
}
