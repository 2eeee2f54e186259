//! Help, version, shell completions and manual pages.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
const RUN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/runs/h100x8_xxrjun_reduce_scatter.json");

use common::{allfold, folder, said};
use std::process::Command;

/// A short run of every command. RUN, RECORDS and FLIGHT are files that the commands read, MLP a configuration, OUT a folder.
const RUNS: [&str; 22] = [
    "verify barrier --ranks 1..4",
    "show all_reduce --algo ring --ranks 2",
    "bench barrier --backend threads --ranks 2 -n 1 -w 0",
    "simulate all_reduce --topology switch --ranks 4 -b 8 -e 8",
    "faults --schedules 1",
    "train --config MLP --steps 1",
    "compare --config MLP --ranks 2 --strategies ddp --modeled-only",
    "predict --help",
    "scale --config MLP --ranks 2 --modeled-only",
    "plan llama3-8b --gpus 8 --gpu H100",
    "machines",
    "report --from RECORDS --out OUT",
    "launch -n 1 -- echo text",
    "validate RUN",
    "why RUN",
    "diff RECORDS RECORDS",
    "calibrate RUN --prior published --out OUT/fitted.toml",
    "doctor",
    "triage FLIGHT",
    "hangs --cases 1",
    "completions bash",
    "man",
];

/// No command succeeds after its output was lost, and neither does its help: what is closed from the start is an error in one line, and
/// a reader that closes the output ends the command as SIGPIPE ends other programs.
#[test]
fn no_command_succeeds_whose_output_is_lost() {
    let folder = folder();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let [records, out] = [place("records.jsonl"), place("out")];
    said(&[
        "simulate",
        "all_reduce",
        "--topology",
        "switch",
        "--ranks",
        "2",
        "-b",
        "8",
        "-e",
        "8",
        "--json",
        &records,
    ]);
    std::fs::create_dir(&out).unwrap();
    let train = ["train", "--config", MLP, "--steps", "100000", "--set", "training.epochs=100000"];
    let launch = ["launch", "-n", "2", "--log-dir", &place("flight"), "--"];
    let fails = [&launch[..], &train[..]].concat();
    let failed =
        Command::new(env!("CARGO_BIN_EXE_allfold")).args(fails).env("ALLFOLD_TIMEOUT", "0.001").output();
    assert_ne!(failed.unwrap().status.code(), Some(0));
    let mut left = commands();
    for run in RUNS {
        let name = run.split(' ').next().unwrap();
        left.retain(|command| command != name);
        let words = run.split(' ').map(|word| match word {
            "MLP" => MLP.into(),
            "RUN" => RUN.into(),
            "RECORDS" => records.clone(),
            "FLIGHT" => place("flight"),
            word => word.replace("OUT", &out),
        });
        let run: Vec<String> = words.collect();
        for args in [run, vec![name.into(), "--help".into()]] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut unread = Command::new(env!("CARGO_BIN_EXE_allfold"));
            let output = unread.args(&args).stdout(writer).output().unwrap();
            assert_eq!(
                (output.status.code(), &output.stderr[..]),
                (Some(141), &b""[..]),
                "{args:?}: {output:?}"
            );
            let script = ["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_allfold")];
            let output = Command::new("sh").args(script).args(&args).output().unwrap();
            let line = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{args:?}: {line}");
            assert!(line.contains("output cannot be written: Bad file descriptor"), "{args:?}: {line}");
        }
    }
    assert_eq!(left, [""; 0], "give each command a short run in RUNS");
}

/// Regression: with little stack every command overflowed it.
#[test]
fn a_command_runs_with_a_small_limit_of_stack() {
    for args in ["--help", "verify barrier --ranks 1..4", "launch -n 2 -- train --config MLP --steps 1"] {
        let args = args.replace("MLP", MLP);
        let script = format!("ulimit -s 64; exec {} {args}", env!("CARGO_BIN_EXE_allfold"));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args}: {output:?}");
    }
}

/// A command whose text or records find no standard output fails instead of losing them.
#[test]
fn a_standard_output_that_is_closed_from_the_start_is_an_error() {
    for args in [
        "verify all_reduce --algo ring --ranks 2 >&-",
        "verify all_reduce --algo ring --ranks 2 --json - >&-",
        // The proofs would take more than the time that is allowed: the error comes before the work.
        "verify --ranks 1..1024 >&-",
        "faults --schedules 100000000 >&-",
    ] {
        let script = format!("ulimit -t 30; exec {} {args}", env!("CARGO_BIN_EXE_allfold"));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args}: {line}");
        assert!(line.contains("error: the output cannot be written: Bad file descriptor"), "{args}: {line}");
    }
}

/// A full disk is an error for every command that prints, help and version too.
#[test]
fn a_standard_output_without_room_is_an_error() {
    for args in [&["machines"][..], &["--help"], &["help"], &["help", "machines"], &["--version"], &[]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_allfold")).args(args).stdout(full).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {line}");
        assert!(line.starts_with("error: the output cannot be written: No space left"), "{args:?}: {line}");
    }
    let script =
        format!("ulimit -t 30; exec {} verify --ranks 1..1024 > /dev/full", env!("CARGO_BIN_EXE_allfold"));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
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
}

#[test]
fn the_version_names_the_commit_and_the_features() {
    let version = said(&["--version"]);
    assert!(
        version.starts_with("allfold ") && version.contains("(commit ") && version.contains("features "),
        "{version}"
    );
}

/// The commands that the help lists, without `help` itself.
fn commands() -> Vec<String> {
    let help = said(&["--help"]);
    let lines =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(String::from).collect()
}

/// The long flags that the help of a command lists, without their dashes.
fn flags(command: &str) -> Vec<String> {
    let help = said(&[command, "--help"]);
    let options = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = options.filter_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix("--")));
    words.map(|word| word.trim_end_matches('.').to_string()).collect()
}

#[test]
fn every_command_and_flag_is_completed_and_has_a_page() {
    let scripts = ["bash", "zsh", "fish"].map(|shell| (shell, said(&["completions", shell])));
    let commands = commands();
    assert!(commands.len() > 15 && commands.iter().any(|name| name == "compare"), "{commands:?}");
    for command in &commands {
        let named = [format!("allfold,{command})"), format!("'{command}:"), format!("-a \"{command}\"")];
        for ((shell, script), name) in scripts.iter().zip(named) {
            assert!(script.contains(&name), "{shell}: no {command}");
        }
        let page = said(&["man", command]);
        assert!(page.contains(&format!(".TH allfold-{command} ")), "{command}: {page}");
        let flags = flags(command);
        assert!(flags.iter().any(|flag| flag == "help"), "{command}: {flags:?}");
        for flag in &flags {
            let written = [format!("--{flag}"), format!("--{flag}"), format!("-l {flag}")];
            for ((shell, script), flag) in scripts.iter().zip(written) {
                assert!(script.contains(&flag), "{shell}, {command}: no {flag}");
            }
            let written = format!("\\-\\-{}", flag.replace('-', "\\-"));
            assert!(page.contains(&written), "{command}: the page lacks --{flag}");
        }
    }
    assert!(said(&["man"]).contains(".TH allfold"));
    let wrong = allfold(&["man", "trian"]);
    let line = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(line.contains("no command is called `trian`; did you mean `train`?"), "{line}");
}

/// Help is styled only on terminals or with CLICOLOR_FORCE, and never with NO_COLOR; errors are never styled.
#[test]
fn help_is_styled_where_it_is_asked_for_and_errors_never_are() {
    let styled = |argument: &str, variables: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_allfold"));
        command.arg(argument);
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        for name in variables {
            command.env(name, "1");
        }
        let output = command.output().unwrap();
        output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b)
    };
    assert!(!styled("--help", &[]));
    assert!(styled("--help", &["CLICOLOR_FORCE"]));
    assert!(!styled("--help", &["CLICOLOR_FORCE", "NO_COLOR"]));
    assert!(!styled("trian", &["CLICOLOR_FORCE"]));
}
