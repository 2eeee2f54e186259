//! Jobs of several processes on GPUs: the `allfold` command on stand-ins for the driver, its libraries and NCCL, one GPU a process.
//!
//! | file | shows |
//! |---|---|
//! | `measuring` | `bench --backend nccl` under each launcher, on one host and as two nodes; its flags |
//! | `training` | `train --device cuda`: losses as on the host, the exchange that is named, ranks that die, stop or are late |
//! | `scaling` | `scale` over the ranks of a job |
//! | `faults` | each command with a rank that is killed, stopped or late, on one host and as two nodes |
//! | `documents` | the output that the page on GPU nodes shows |
//! | `bad_input` | what is wrong is one line on rank 0 |
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod bad_input;
mod documents;
mod faults;
mod measuring;
mod scaling;
mod training;

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The outcome of a job: its exit code, what it printed, and its errors.
struct Ended {
    code: Option<i32>,
    text: String,
    errors: String,
}

/// The command on stand-ins, without the variables of a launcher around the tests.
fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_allfold-on-stand-ins"));
    command.args(words).env("ALLFOLD_STANDIN", "8").stdin(Stdio::null());
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "NCCL_HOSTID", "ALLFOLD_TIMEOUT"] {
        command.env_remove(name);
    }
    command
}

fn ended(output: std::process::Output) -> Ended {
    let [text, errors] = [output.stdout, output.stderr].map(|part| String::from_utf8(part).unwrap());
    Ended { code: output.status.code(), text, errors }
}

fn run(words: &[&str]) -> Ended {
    ended(command(words).output().unwrap())
}

/// Runs a command that must succeed; returns what it printed.
fn said(words: &[&str]) -> String {
    let Ended { code, text, errors } = run(words);
    assert_eq!(code, Some(0), "{words:?}\n{text}{errors}");
    text
}

/// A port that no process of this host uses at present.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Runs commands at the same time, each with variables of its own; returns how each ended.
fn together(commands: Vec<Command>) -> Vec<Ended> {
    let start = |mut command: Command| command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let children: Vec<_> = commands.into_iter().map(start).collect();
    children.into_iter().map(|child| ended(child.wait_with_output().unwrap())).collect()
}

/// A configuration of the project's.
fn config(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../experiments/configs", name].iter().collect();
    path.display().to_string()
}

/// The records of a file.
fn records(path: &std::path::Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
