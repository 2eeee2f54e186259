//! Tests whose ranks are processes: a test starts its own binary once per rank.

use allfold_collectives::Communicator;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};

/// The variable by which a process knows that it is a rank.
const RANK_OF: &str = "ALLFOLD_TEST_RANK_OF";

/// In a rank: its communicator.
pub fn joined() -> Option<Communicator> {
    std::env::var_os(RANK_OF)?;
    Some(Communicator::from_env().unwrap())
}

/// Runs the test `name` as so many ranks, each with variables of its own; returns what each printed. All of them must pass.
pub fn ranks(
    name: &str,
    count: usize,
    variables: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> Vec<String> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(RANK_OF, name);
        for (of, number) in [("", rank), ("LOCAL_", rank)] {
            command.env(format!("{of}RANK"), number.to_string());
            command.env(format!("{of}WORLD_SIZE"), count.to_string());
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("ALLFOLD_TIMEOUT", "60").envs(variables(rank)).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..count).map(start).collect();
    let ended = children.into_iter().enumerate().map(|(rank, child)| {
        let output = child.wait_with_output().unwrap();
        let [text, errors] =
            [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned());
        (rank, output.status.success() && text.contains(" 1 passed"), text, errors)
    });
    let ended: Vec<_> = ended.collect();
    for (rank, passed, text, errors) in &ended {
        assert!(passed, "rank {rank} of {name}\n{text}{errors}");
    }
    ended.into_iter().map(|(_, _, text, _)| text).collect()
}
