#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
//! Real processes: launched, watched, killed and started again; none of them is left behind.

mod leftovers;
mod limits;
mod logs;
mod nodes;
mod storms;
mod training;
mod trials;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const ALLFOLD: &str = env!("CARGO_BIN_EXE_allfold");

/// Longer than any of these commands should take, on any machine.
const LONG: Duration = Duration::from_secs(600);

fn launch(args: &[&str]) -> Command {
    let mut command = Command::new(ALLFOLD);
    command.arg("launch").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The tests themselves may run under a launcher, whose variables are removed.
    for name in ["RANK", "WORLD_SIZE", "ALLFOLD_RENDEZVOUS", "ALLFOLD_SECRET_FILE", "ALLFOLD_FLIGHT_DIR"] {
        command.env_remove(name);
    }
    command
}

fn end(mut command: Command) -> Output {
    ended(command.spawn().unwrap())
}

/// Waits for a command to end; a hang fails the test, and the launcher is killed.
fn ended(child: Child) -> Output {
    let id = child.id();
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    wait.recv_timeout(LONG).map(Result::unwrap).unwrap_or_else(|_| {
        Command::new("kill").args(["-9", &id.to_string()]).status().unwrap();
        panic!("the launcher hangs");
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The lines of each rank, which begin with `[rank N]`.
fn by_rank(output: &str) -> BTreeMap<u32, Vec<String>> {
    let mut ranks: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for line in output.lines() {
        let (rank, said) = line.strip_prefix("[rank ").and_then(|rest| rest.split_once("] ")).expect(line);
        ranks.entry(rank.parse().unwrap()).or_default().push(said.into());
    }
    ranks
}

/// The processes with this mark in their command line.
fn living(mark: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let marked = |path: &PathBuf| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let state = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        let dead = state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
        !dead && text(&line).contains(mark)
    };
    all.filter(marked).collect()
}

/// Waits until no process with this mark in its command line runs.
fn gone(mark: &str) {
    for _ in 0..60_000 {
        if living(mark).is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("still there: {:?}", living(mark));
}

#[test]
fn ranks_see_torchruns_variables_and_speak_in_lines() {
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $TORCHELASTIC_RESTART_COUNT; \
                  echo port $MASTER_PORT at $MASTER_ADDR >&2; printf unfinished";
    let output = end(launch(&["-n", "3", "--", "sh", "-c", script]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (out, err) = (by_rank(&text(&output.stdout)), by_rank(&text(&output.stderr)));
    for rank in 0..3 {
        assert_eq!(out[&rank], [format!("{rank} 3 {rank} 3 0 0"), "unfinished".into()]);
        assert_eq!(err[&rank], err[&0], "one port for all");
    }
}

#[test]
fn the_first_failure_is_told_with_its_rank_and_cause_and_returned() {
    let script = "if [ $RANK = 2 ]; then echo error: no such luck >&2; exit 7; fi; sleep 1000";
    let output = end(launch(&["-n", "4", "--", "sh", "-c", script]));
    assert_eq!(output.status.code(), Some(7));
    let said = text(&output.stderr);
    assert_eq!(said.lines().last(), Some("error: rank 2 failed first, exited with 7: no such luck"));

    // A panic in Rust is the cause, not the note that follows it.
    let script = "[ $RANK = 0 ] && sleep 1000; printf \"thread 'main' (4711) panicked at src/main.rs:12:5:\\nmy bug\\n\
                  note: run with \\140RUST_BACKTRACE=1\\140 environment variable to display a backtrace\\n\" >&2; exit 101";
    let output = end(launch(&["-n", "2", "--", "sh", "-c", script]));
    let panicked =
        "error: rank 1 failed first, exited with 101: thread 'main' panicked at src/main.rs:12:5: my bug";
    assert_eq!(text(&output.stderr).lines().last(), Some(panicked));

    // What a killed rank printed last is not the cause.
    let script = "[ $RANK = 0 ] && sleep 1000; echo step 3 of 9 >&2; kill -9 $$";
    let output = end(launch(&["-n", "2", "--", "sh", "-c", script]));
    assert_eq!(output.status.code(), Some(128 + 9));
    assert_eq!(text(&output.stderr).lines().last(), Some("error: rank 1 failed first, killed by SIGKILL"));
}

#[test]
fn an_error_that_several_ranks_have_is_printed_once_with_their_numbers() {
    // Every rank ends after all have printed their lines: else the launcher would end some before.
    let script = "echo error: no such file >&2; echo $RANK > $0/$RANK; \
                  while [ $(ls $0 | wc -l) -lt 4 ]; do sleep 0.01; done; exit 2";
    let folder = tempfile::tempdir().unwrap();
    let said =
        text(&end(launch(&["-n", "4", "--", "sh", "-c", script, folder.path().to_str().unwrap()])).stderr);
    let (first, rest) = said.split_once(" error: no such file\n").unwrap();
    let (same, last) = rest.split_once(" the same error\n").unwrap();
    let numbers = |line: &str| line.chars().filter(char::is_ascii_digit).collect::<String>();
    assert!(first.starts_with("[rank ") && same.starts_with("[ranks "), "{said}");
    let mut ranks: Vec<char> = format!("{}{}", numbers(first), numbers(same)).chars().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ['0', '1', '2', '3'], "{said}");
    assert!(last.starts_with("error: rank ") && last.ends_with("exited with 2: no such file\n"), "{said}");
}

/// The others wait for a rank that has exited with 0 until their timeout, and their error alone would blame the rank that gave up first.
#[test]
fn a_rank_that_exited_with_0_before_another_failed_over_it_is_named() {
    // Rank 0 fails as soon as the launcher has seen the end of rank 1's process.
    let script = "[ $RANK = 1 ] && { echo $$ > $0/pid; exit 0; }; [ $RANK = 2 ] && exec sleep 1000; \
                  while ! [ -s $0/pid ] || kill -0 $(cat $0/pid) 2>/dev/null; do sleep 0.01; done; \
                  echo rank 1 did not join >&2; exit 1";
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let said = text(&end(launch(&["-n", "3", "--", "sh", "-c", script, &place])).stderr);
    let last = said.lines().last().unwrap();
    let begins = "error: rank 0 failed first, exited with 1 (rank 1 had exited with 0 before, after ";
    assert!(last.starts_with(begins) && last.ends_with(" s): rank 1 did not join"), "{said}");
}

#[test]
fn all_are_started_again_while_restarts_are_left() {
    let script = "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 3; [ $RANK = 0 ] && echo $TORCHELASTIC_RESTART_COUNT; sleep 0.3";
    let output = end(launch(&["-n", "2", "--max-restarts", "2", "--", "sh", "-c", script]));
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("starting again (1 of 2)") && said.contains("starting again (2 of 2)"), "{said}");
    let output = end(launch(&["-n", "2", "--max-restarts", "1", "--", "sh", "-c", script]));
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn what_does_not_end_when_asked_is_killed_after_the_grace_period() {
    let script = "trap '' TERM; echo up; [ $RANK = 0 ] && { sleep 0.2; exit 4; }; while :; do sleep 1; done # grace-mark-51";
    let output = end(launch(&["-n", "3", "--grace", "0.3", "--", "sh", "-c", script]));
    assert_eq!(output.status.code(), Some(4));
    gone("grace-mark-51");
}

#[test]
fn a_launcher_that_nobody_listens_to_ends_all_the_same() {
    // Standard error is closed from the start, so that reporting the failure fails.
    let mut command = launch(&["-n", "1", "--max-restarts", "2", "--", "sh", "-c", "echo up; exit 4"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    assert_eq!(end(command).status.code(), Some(4));
}

#[test]
fn a_launcher_whose_output_is_not_read_hears_of_signals() {
    let mut command = launch(&["-n", "1", "--grace", "0.3", "--", "sh", "-c", "yes unread-mark-29"]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    command.stdout(writer);
    let mut child = command.spawn().unwrap();
    // There is output in the pipe; nothing more of it is read from here on.
    std::io::Read::read_exact(&mut reader, &mut [0; 8]).unwrap();
    signal(&child, "-TERM");
    let (done, wait) = mpsc::channel();
    let id = child.id();
    std::thread::spawn(move || done.send(child.wait().unwrap()));
    let status = wait.recv_timeout(LONG).unwrap_or_else(|_| {
        Command::new("kill").args(["-9", &id.to_string()]).status().unwrap();
        panic!("it is deaf");
    });
    assert_eq!(status.code(), Some(128 + 15));
    gone("unread-mark-29");
    drop(reader);
}

fn signal(child: &Child, which: &str) {
    assert!(Command::new("kill").args([which, &child.id().to_string()]).status().unwrap().success());
}

/// Starts a launcher and reads `marks` lines of its ranks' output; returns the launcher with the reader of the further output.
fn started(args: &[&str], marks: usize) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = launch(args).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..marks {
        assert!(out.read_line(&mut String::new()).unwrap() > 0, "a rank has ended too early");
    }
    (child, out)
}

#[test]
fn signals_reach_ranks_as_they_came() {
    // A rank that got SIGKILL soon after SIGINT would not print `saved`; a rank that got SIGTERM instead would print `ended`.
    let script = "trap 'echo told' USR1; trap 'sleep 0.3; echo saved; exit 0' INT; trap 'echo ended; exit 9' TERM; \
                  echo up; while :; do sleep 0.01; done";
    let (child, mut out) = started(&["-n", "2", "--", "sh", "-c", script], 2);
    signal(&child, "-USR1");
    for _ in 0..2 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert!(line.ends_with("told\n"), "{line}");
    }
    signal(&child, "-INT");
    let rest = by_rank(&std::io::read_to_string(out).unwrap());
    assert_eq!(rest.into_values().collect::<Vec<_>>(), [["saved"], ["saved"]]);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 2));
    assert_eq!(text(&output.stderr).lines().last(), Some("error: stopped by SIGINT"));
}

/// SIGUSR1 and SIGUSR2 end a program that does not catch them: such a program does not get them, even if another process of its rank does.
#[test]
fn a_signal_for_ranks_ends_no_program_that_does_not_catch_it() {
    let catches = "trap 'echo told' USR2; echo up; while :; do sleep 0.01; done";
    let script = "[ $RANK = 2 ] && { echo up; exec sleep 1000; }; sh -c \"$0\"; echo died";
    let (mut child, mut out) = started(&["-n", "3", "--", "sh", "-c", script, catches], 3);
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    signal(&child, "-USR2");
    let told = "passed SIGUSR2 to 2 of 3 ranks: no process of rank 2 catches it; ranks of allfold write their flight records on SIGUSR2 \
                with --log-dir only";
    assert_eq!(said.next().as_deref(), Some(told));
    for _ in 0..2 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert!(line.ends_with("told\n") && !line.starts_with("[rank 2]"), "{line}");
    }
    signal(&child, "-USR1");
    let told = "passed SIGUSR1 to 0 of 3 ranks: no process of ranks 0, 1, 2 catches it";
    assert_eq!(said.next().as_deref(), Some(told));
    signal(&child, "-TERM");
    assert_eq!(ended(child).status.code(), Some(128 + 15));
    assert_eq!(said.last().as_deref(), Some("error: stopped by SIGTERM"));
}

#[test]
fn a_signal_while_a_failure_ends_the_others_lets_nothing_start_again() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    // Rank 0 fails once rank 1 has set its trap for SIGTERM.
    let script = "trap 'echo asked' TERM; [ $RANK = 0 ] && { while ! [ -e $0/up ]; do sleep 0.01; done; exit 4; }; \
                  echo up; touch $0/up; while :; do sleep 0.01; done";
    let args = ["-n", "2", "--max-restarts", "2", "--grace", "90", "--", "sh", "-c", script, &place];
    // Rank 1 has printed that it runs and that it got SIGTERM, and does not end.
    let (child, _out) = started(&args, 2);
    signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(
        !said.contains("starting again") && said.contains("rank 0 failed first, exited with 4"),
        "{said}"
    );
}

#[test]
fn who_was_killed_is_named_before_who_failed_over_it_whatever_holds_its_output() {
    let script = "if [ $RANK = 0 ]; then setsid sleep 5 & kill -9 $$; fi; \
                  while kill -0 $(cat $0/pid) 2>/dev/null; do :; done; sleep 0.1; echo rank 0 is lost >&2; exit 3";
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let script = format!("[ $RANK = 0 ] && echo $$ > $0/pid; while ! [ -s $0/pid ]; do :; done; {script}");
    let output = end(launch(&["-n", "2", "--", "bash", "-c", &script, &place]));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 9), "{said}");
    assert!(said.contains("rank 0 failed first, killed by SIGKILL"), "{said}");
}

#[test]
fn flight_records_of_an_earlier_run_are_not_taken_for_this_one_s() {
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("start-1");
    std::fs::create_dir(&old).unwrap();
    std::fs::write(old.join("flight-rank-3.jsonl"), "of an earlier run").unwrap();
    std::fs::write(old.join("rank-3.out"), "kept").unwrap();
    let logs = folder.path().display().to_string();
    assert!(end(launch(&["-n", "1", "--log-dir", &logs, "--", "true"])).status.success());
    assert!(!old.join("flight-rank-3.jsonl").exists() && old.join("rank-3.out").exists());
}

/// Starts ranks that start processes of their own, one of them outside the rank's process group. Returns once every rank has
/// printed `up`.
fn families(mark: &str) -> Child {
    let script = format!("sleep 1000 & setsid sleep 1000 & echo up; wait # {mark}");
    let script = script.replace("sleep 1000", &format!("sh -c 'while :; do sleep 1; done # {mark}'"));
    let mut child = launch(&["-n", "2", "--grace", "1", "--", "bash", "-c", &script]).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(out.lines().take(2).filter(|line| line.as_ref().unwrap().ends_with("up")).count(), 2);
    child
}

fn kill(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_signal_to_the_launcher_ends_everything_that_ranks_have_started() {
    // The others: XCPU, ABRT, ALRM, VTALRM, IO, SYS, TRAP, XFSZ and two real-time signals, whose names differ between systems.
    let asked = [("-TERM", 143), ("-INT", 130)];
    let others = [("-24", 152), ("-6", 134), ("-14", 142), ("-26", 154), ("-29", 157), ("-31", 159)];
    let others = others.into_iter().chain([("-5", 133), ("-25", 153), ("-34", 162), ("-64", 192)]);
    for (signal, code) in asked.into_iter().chain(others) {
        let mark = format!("family-mark{signal}");
        let mut child = families(&mark);
        assert!(living(&mark).len() >= 6);
        kill(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        gone(&mark);
    }
}

#[test]
fn a_launcher_that_is_killed_leaves_no_rank_and_nothing_of_their_groups() {
    let script = "sh -c 'while :; do sleep 1; done # killed-mark-7' & echo up; wait # killed-mark-7";
    let mut child = launch(&["-n", "2", "--", "sh", "-c", script]).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(out.lines().take(2).count(), 2);
    kill(&child, "-KILL");
    child.wait().unwrap();
    gone("killed-mark-7");
}

/// An address at which nothing listens, below the ports that systems assign; another one for every call.
fn unused() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let port = |_| 20_000 + (std::process::id() * 8 + NEXT.fetch_add(1, Ordering::Relaxed)) % 8_000;
    let mut addresses = (0..8_000).map(port).map(|port| format!("127.0.0.1:{port}"));
    addresses.find(|at| std::net::TcpListener::bind(at).is_ok()).unwrap()
}

#[test]
fn what_cannot_be_launched_is_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("127.0.0.1:{}", taken.local_addr().unwrap().port());
    let nobody = unused();
    let outside = &["--nnodes", "2", "--rdzv", "0.0.0.0:29876", "--", "true"];
    for (args, code, says) in [
        (&["--rdzv", &at, "--", "true"][..], 1, "the port is in use"),
        (
            &["--nnodes", "2", "--node-rank", "1", "--rdzv", &nobody, "--rdzv-timeout", "0.3", "--", "true"],
            1,
            "the launcher of node 0 did not answer there within",
        ),
        (
            &["--nnodes", "2", "--rdzv", &nobody, "--rdzv-timeout", "1", "--", "true"],
            1,
            "node 1 did not join within",
        ),
        (&["--nnodes", "2", "--", "true"], 2, "--rdzv HOST:PORT"),
        (&["--nnodes", "2", "--node-rank", "2", "--rdzv", &at, "--", "true"], 2, "nodes are 0 to 1"),
        (&["--rdzv", "nonsense", "--", "true"], 2, "write HOST:PORT"),
        (outside, 2, "no loopback address"),
        (&["-n", "2"], 2, "COMMAND"),
        (&["--grace", "x", "--", "true"], 2, "seconds"),
        (&["--grace", "1e19", "--", "true"], 2, "seconds from 0 to 1e9"),
        (&["--rdzv-timeout", "1e19", "--", "true"], 2, "seconds from 0.001 to 1e9"),
    ] {
        let output = end(launch(args));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(says) && said.lines().count() == 1, "{args:?}: {said}");
    }
}

#[test]
fn a_launcher_says_what_it_waits_for_unless_it_is_quiet() {
    let at = unused();
    let said = |node, more: &[&str]| {
        let flags = ["--nnodes", "2", "--node-rank", node, "--rdzv", &at, "--rdzv-timeout", "3"];
        text(&end(launch(&[&flags[..], more, &["--", "true"]].concat())).stderr)
    };
    for (node, waits) in
        [("0", "waiting for node 1 to join, ".into()), ("1", format!("waiting for node 0 at {at}, "))]
    {
        let told = said(node, &[]);
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with(&waits) && lines[0].ends_with(" so far"), "{told}");
        let told = said(node, &["-q"]);
        assert!(told.starts_with("error: ") && told.lines().count() == 1, "{told}");
    }
}

#[test]
fn where_anyone_may_join_a_line_says_so() {
    let insecure = ("ALLFOLD_SECURITY", "insecure-plaintext");
    let at = unused();
    let port = at.rsplit_once(':').unwrap().1;
    let warning = format!("WARNING: insecure-plaintext: anyone who reaches port {port}");
    let mut command = launch(&["-n", "2", "--rdzv", &at, "--", "true"]);
    command.env(insecure.0, insecure.1);
    let said = text(&end(command).stderr);
    assert!(said.starts_with(&warning) && said.lines().count() == 1, "{said}");

    // Without a launcher, rank 0 prints the warning.
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 2);
    let rank = |rank: &str| {
        let mut command = Command::new(ALLFOLD);
        let place =
            [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)];
        command.args(["train", "--config", &config]).envs(place).env(insecure.0, insecure.1);
        command.env("ALLFOLD_RENDEZVOUS_TIMEOUT", "0.3").stdout(Stdio::piped()).stderr(Stdio::piped());
        text(&end(command).stderr)
    };
    let said = rank("0");
    assert!(said.starts_with(&warning) && said.lines().count() == 2, "{said}");
    let said = rank("1");
    assert!(!said.contains("WARNING"), "{said}");
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let family = |mark: &str| {
        let waits = format!("while :; do sleep 1; done # {mark}");
        format!("setsid sh -c '{waits}' & {waits}")
    };
    // A folder has the name of the last rank's output file.
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let taken = folder.path().join("start-0/rank-9.out");
    std::fs::create_dir_all(&taken).unwrap();
    let script = family("taken-mark-63");
    let output = end(launch(&["-n", "10", "--log-dir", &place, "--", "sh", "-c", &script]));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot start rank 9"), "{said}");
    gone("taken-mark-63");
    std::fs::remove_dir(&taken).unwrap();

    // The folder of the next start cannot be made.
    let script = format!("[ $RANK = 1 ] && {{ touch $0/start-1; exit 3; }}; {}", family("again-mark-64"));
    let flags = ["-n", "2", "--max-restarts", "1", "--elastic", "--log-dir", &place, "--"];
    let output = end(launch(&[&flags[..], &["sh", "-c", &script, &place]].concat()));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--log-dir cannot be written"), "{said}");
    gone("again-mark-64");
}
