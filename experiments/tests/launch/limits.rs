//! Ranks that a machine cannot start, and signals while ranks start: the launcher prints one line and leaves no process behind.

use super::*;

/// A launcher under a shell's limits: `limits` are words such as `ulimit -n 64`.
pub(super) fn limited(limits: &str, args: &[&str]) -> Command {
    let inside = launch(args);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits}; exec \"$@\""), "sh", ALLFOLD]).args(inside.get_args());
    for (name, _) in inside.get_envs() {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn more_ranks_than_can_be_started_are_refused_before_the_first() {
    let starts = "echo up; sleep 1000 # never-mark-17";
    for (command, says) in [
        (launch(&["-n", "4294967295", "--", "sh", "-c", starts]), "4294967295 is not in 1..=65536"),
        (
            limited("ulimit -n 64", &["-n", "40", "--", "sh", "-c", starts]),
            "descriptors and this process may open 64",
        ),
        // Too few descriptors even for the launcher to receive signals.
        (limited("ulimit -n 6", &["-n", "4", "--", "true"]), "descriptors and this process may open 6"),
    ] {
        let output = end(command);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says) && said.lines().count() == 1 && output.stdout.is_empty(), "{said}");
    }
    assert!(living("never-mark-17").is_empty());
    // The limit that the message gives is enough, and one less is not.
    let tried =
        |limit: u32| end(limited(&format!("ulimit -n {limit}"), &["-n", "4", "--", "sh", "-c", "true"]));
    let said = text(&tried(20).stderr);
    let enough = said.split("by `ulimit -n ").nth(1).and_then(|rest| rest.split('`').next());
    let enough: u32 = enough.and_then(|number| number.parse().ok()).expect(&said);
    assert_eq!([enough, enough - 1].map(|limit| tried(limit).status.code()), [Some(0), Some(2)]);
}

/// The limit on processes holds for users other than root.
#[test]
fn where_no_thread_can_start_one_line_says_so() {
    let words = [
        "bench all_reduce --backend tcp --ranks 2 -b 8 -e 8 -n 1",
        "bench all_reduce --backend threads --ranks 64 -b 8 -e 8 -n 1",
    ];
    for words in words {
        let script = format!("ulimit -u 1; exec \"$0\" {words}");
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "54321", "--clear-groups", "bash", "-c", &script, ALLFOLD])
            .env_remove("RUST_BACKTRACE");
        let Ok(output) = command.output() else { return println!("SKIP: there is no setpriv") };
        let said = text(&output.stderr);
        if said.contains("setpriv:") {
            return println!("SKIP: another user cannot run this program here: {said}");
        }
        let errors: Vec<&str> =
            said.lines().filter(|line| line.contains("error: ") || line.contains("panicked at")).collect();
        assert!(
            output.status.code() == Some(1) && errors.len() == 1 && errors[0].starts_with("error: "),
            "{said}"
        );
    }
}

/// A rank without descriptors for its connections is told so at once, not when its time to connect is over.
#[test]
fn a_rank_with_too_few_descriptors_says_so_long_before_its_deadline() {
    let script = format!("ulimit -n 16; exec {ALLFOLD} bench all_reduce -b 8 -e 8 -n 1 --backend tcp");
    let mut command = launch(&["-n", "12", "--", "sh", "-c", &script]);
    // Ranks would wait for 3000 s.
    command.env("ALLFOLD_TIMEOUT_FACTOR", "100");
    let output = end(command);
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.lines().last().unwrap().contains("`ulimit -n`"),
        "{said}"
    );
}

#[test]
fn a_signal_is_heard_between_two_starts() {
    let script = "echo up; while :; do sleep 1; done # between-mark-23";
    let ranks = 400;
    let mut child = launch(&["-n", &ranks.to_string(), "--", "sh", "-c", script]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    signal(&child, "-INT");
    let started = 1 + out.lines().count();
    assert_eq!(ended(child).status.code(), Some(128 + 2));
    assert!(started < ranks, "all {ranks} ranks were started first");
    gone("between-mark-23");
}

#[test]
fn a_program_that_is_not_there_is_named_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text_file = file.path().display().to_string();
    for (program, code, says) in [
        ("no-such-program-anywhere", 127, "no such program on the PATH"),
        ("./no/such/program", 127, "./no/such/program: No such file"),
        (&text_file, 126, "is no program that may be run"),
    ] {
        for more in [&[][..], &["--max-restarts", "2"]] {
            let output = end(launch(&[&["-n", "3"], more, &["--", program]].concat()));
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{said}");
            assert!(said.contains(says) && said.lines().count() == 1, "{said}");
        }
    }
}

#[test]
fn commands_of_one_process_are_not_run_several_times() {
    let verify = ["-n", "2", "--", "verify", "all_reduce", "--algo", "ring", "--ranks", "4"];
    let output = end(launch(&verify));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`verify` runs in one process") && said.lines().count() == 1, "{said}");
    // Another program's launcher has the same effect; a launcher of a single process does not.
    let alone = |size: &str| {
        let mut command = Command::new(ALLFOLD);
        let place = [("RANK", "0"), ("WORLD_SIZE", size), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
        command.args(&verify[3..]).envs(place).stdout(Stdio::piped()).stderr(Stdio::piped());
        end(command).status.code()
    };
    assert_eq!((alone("2"), alone("1")), (Some(2), Some(0)));
    let output = end(launch(&["-n", "2", "--", "doctor"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_launcher_s_processes_are_the_ranks_of_a_measurement() {
    let bench = |backend: &str| {
        let sizes = ["-b", "4K", "-e", "4K", "-n", "1", "-w", "0"];
        end(launch(&[&["-n", "2", "--", "bench", "all_reduce", "--backend", backend], &sizes[..]].concat()))
    };
    for backend in ["tcp", "shm"] {
        let output = bench(backend);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("2 ranks as processes"), "{}", text(&output.stdout));
    }
    let output = bench("threads");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("run all ranks in one process, but the launcher has started 2"), "{said}");
}

#[test]
fn a_guard_that_was_killed_is_named() {
    let script = "for child in $(cat /proc/$PPID/task/*/children); do \
                    grep -q 'launch-guar[d]' /proc/$child/cmdline && kill -9 $child; done; sleep 0.1; exit 3";
    let output = end(launch(&["-n", "1", "--max-restarts", "1", "--", "sh", "-c", script]));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot start rank 0: the guard of this launcher, process "), "{said}");
}

#[test]
fn what_a_rank_says_last_reaches_no_terminal_as_a_command() {
    let script = "printf '\\033]0;title\\007 no such luck\\n' >&2; exit 3";
    let output = end(launch(&["-n", "1", "--", "sh", "-c", script]));
    let said = text(&output.stderr);
    let last = said.lines().last().unwrap();
    assert!(last.ends_with(r"exited with 3: \u{1b}]0;title\u{7} no such luck"), "{last:?}");
}

#[test]
fn a_secret_s_file_that_is_named_by_nothing_is_no_job_without_a_secret() {
    let mut command = launch(&["-n", "1", "--", "true"]);
    command.env("ALLFOLD_SECRET_FILE", "");
    let output = end(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("ALLFOLD_SECRET_FILE is ``: name the file") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_rank_that_waits_for_others_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 2);
    let port = unused().rsplit_once(':').unwrap().1.to_string();
    let mut command = Command::new(ALLFOLD);
    let place = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
    command.args(["train", "--config", &config]).envs(place).env("ALLFOLD_RENDEZVOUS_TIMEOUT", "2.5");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = text(&end(command).stderr);
    // The run's own line of progress, which every wait of more than two seconds prints, is left out.
    let lines: Vec<&str> = said.lines().filter(|line| !line.contains(" steps, ")).collect();
    assert_eq!((lines.len(), lines[0]), (2, "waiting for rank 1 to join, for up to 2.5s (rank 0)"), "{said}");
    assert!(lines[1].contains("rank 1 did not join within 2.5s"), "{said}");
    // A launcher names the ranks that have not come, too.
    let script = format!("[ $RANK = 1 ] && exec sleep 1000; exec {ALLFOLD} train --config {config}");
    let said = text(&end(launch(&["-n", "3", "--rdzv-timeout", "2.5", "--", "sh", "-c", &script])).stderr);
    assert!(said.lines().any(|line| line == "waiting for rank 1 to join, for up to 2.5s"), "{said}");
}
