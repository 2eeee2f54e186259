//! What is left of a job: processes, output, and a word about each.

use super::*;
use std::os::unix::process::{CommandExt, ExitStatusExt};

/// Signals that the launcher cannot handle: SIGKILL, and SIGILL and SIGFPE, which a program also raises by its own mistakes.
#[test]
fn a_launcher_that_a_signal_ends_at_once_leaves_no_process_in_or_out_of_the_ranks_groups() {
    for (signal, number) in [("-KILL", 9), ("-ILL", 4), ("-FPE", 8)] {
        let mark = format!("unhandled-mark{signal}");
        let mut child = families(&mark);
        assert!(living(&mark).len() >= 6);
        kill(&child, signal);
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        gone(&mark);
    }
}

#[test]
fn a_guard_that_is_stopped_kills_what_is_left_when_its_launcher_is_killed() {
    let mark = "stopped-guard-mark-61";
    let mut child = families(mark);
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let is_guard = |id: &&str| {
        text(&std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default()).contains("launch-guard")
    };
    let guard = children.split_whitespace().find(is_guard).unwrap();
    assert!(Command::new("kill").args(["-STOP", guard]).status().unwrap().success());
    kill(&child, "-KILL");
    child.wait().unwrap();
    gone(mark);
}

#[test]
fn processes_that_a_rank_leaves_behind_do_not_count_once_they_have_ended() {
    // Each of the processes is adopted by the launcher and ends. Rank 0 waits until none of them is left, not even as an exit code.
    let script = "for i in 1 2 3 4 5 6 7 8; do (setsid true &); done; \
                  while grep -lE '^State:.Z' $(for child in $(cat /proc/$PPID/task/*/children); do \
                  echo /proc/$child/status; done) 2>/dev/null; do sleep 0.01; done; echo reaped";
    let output = end(launch(&["-n", "1", "--", "sh", "-c", script]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(by_rank(&text(&output.stdout))[&0].last().unwrap(), "reaped");
}

#[test]
fn ranks_that_were_killed_after_the_grace_period_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let script = "trap '' TERM; [ $RANK = 1 ] && trap 'exit 0' TERM; echo up > $0/$RANK; \
                  while [ $RANK = 0 ]; do [ -s $0/1 ] && [ -s $0/2 ] && exit 4; sleep 0.01; done; \
                  while :; do sleep 0.05; done";
    let output = end(launch(&["-n", "3", "--grace", "0.5", "--", "sh", "-c", script, &place]));
    let said = text(&output.stderr);
    let line = said.lines().find(|line| line.contains("had to be killed"));
    assert!(line.is_some_and(|line| line.contains("2 still ran 500ms after SIGTERM")), "{said}");
    assert!(line.unwrap().ends_with("--grace SECONDS gives ranks more time"), "{said}");
    let kept = end(launch(&["-n", "2", "--", "sh", "-c", "[ $RANK = 0 ] && exit 4; exec sleep 1000"]));
    assert!(!text(&kept.stderr).contains("killed"), "{}", text(&kept.stderr));
}

#[test]
fn output_of_ranks_that_cannot_be_written_fails_the_job() {
    let run = |redirection: &str| {
        let command = format!("exec {ALLFOLD} launch -n 1 -- echo lost {redirection}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = end(shell);
        (output.status.code(), text(&output.stderr))
    };
    for (redirection, why) in [("> /dev/full", "No space left on device"), (">&-", "Bad file descriptor")] {
        let (code, said) = run(redirection);
        assert_eq!(code, Some(1), "{said}");
        let begins = format!("error: the ranks' output cannot be written: {why}");
        assert!(said.starts_with(&begins) && said.lines().count() == 1, "{said}");
    }
    assert_eq!(run("> /dev/null"), (Some(0), String::new()));
}

/// A crash of a rank over shared memory, with core dumps on: its dump must not hold the mapping of the world, which is larger than
/// memory, and the launcher names the rank that crashed.
#[test]
fn a_rank_that_dumps_its_core_is_the_cause_and_its_dump_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 100_000);
    let train = format!("{ALLFOLD} train --config {config}");
    // Rank 1 crashes in training: its own process gets SIGABRT once there is a checkpoint.
    let script = format!(
        "ulimit -c unlimited; cd {0}; if [ $RANK = 1 ]; then \
           (while ! ls {0}/checkpoints/step-*.safetensors >/dev/null 2>&1; do sleep 0.01; done; kill -ABRT $$) & fi; exec {train}",
        folder.path().display()
    );
    let mut command = launch(&["-n", "2", "--", "sh", "-c", &script]);
    command.process_group(0);
    let output = end(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 6), "{said}");
    assert!(
        said.lines().last().unwrap().starts_with("error: rank 1 failed first, killed by SIGABRT"),
        "{said}"
    );
    let dumps = folder.path().read_dir().unwrap().flatten();
    let sizes: Vec<u64> = dumps
        .filter(|entry| entry.file_name().to_string_lossy().contains("core"))
        .map(|entry| entry.metadata().unwrap().len())
        .collect();
    println!("core dumps of {sizes:?} bytes");
    assert!(sizes.iter().all(|bytes| *bytes < 4 << 30), "{sizes:?}");
}

/// `srun --pty bash`, a PyTorchJob of one process and `mpirun -n 1` set the variables of a launcher for a world of one.
#[test]
fn a_world_of_one_process_runs_as_many_ranks_as_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 2);
    let slurm =
        [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_LOCALID", "0"), ("SLURM_STEP_ID", "0")];
    let torch = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
    let mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    for place in [&slurm[..], &torch[..], &mpi[..]] {
        let run = |words: &[&str]| {
            let mut command = Command::new(ALLFOLD);
            command.args(words).args(["--ranks", "2"]).envs(place.iter().copied());
            let output = end({
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                command
            });
            let _ = std::fs::remove_dir_all(folder.path().join("checkpoints"));
            (output.status.code(), text(&output.stdout) + &text(&output.stderr))
        };
        let (code, said) = run(&["train", "--config", &config]);
        assert!(code == Some(0) && said.contains("2 ranks"), "{place:?}: {said}");
        let bench = ["bench", "all_reduce", "-b", "8", "-e", "8", "-n", "1", "--backend"];
        let (code, said) = run(&[&bench[..], &["shm"]].concat());
        assert_eq!(code, Some(0), "{place:?}: {said}");
        // A backend that needs a launcher takes the launcher's number of ranks.
        let (code, said) = run(&["train", "--config", &config, "--backend", "tcp"]);
        assert!(code == Some(2) && said.contains("--backend threads"), "{place:?}: {said}");
    }
}

#[test]
fn restarts_of_a_run_without_checkpoints_are_warned_of_at_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 2);
    let kept = std::fs::read_to_string(&config).unwrap();
    let run = |restarts: &str| {
        text(
            &end(launch(&["-n", "2", "--max-restarts", restarts, "--", "train", "--config", &config])).stderr,
        )
    };
    let warns = "each of its 2 restarts would begin at step 0";
    assert!(!run("2").contains(warns));
    std::fs::write(&config, kept.split("[checkpoint]").next().unwrap()).unwrap();
    let said = run("2");
    assert_eq!(said.matches(warns).count(), 1, "{said}");
    assert!(said.lines().next().unwrap().contains(warns) && !run("0").contains(warns), "{said}");
}

#[test]
fn a_host_that_does_not_exist_and_a_timeout_of_nothing_are_wrong_flags() {
    for (flags, says) in [
        (&["--rdzv", "nohost.invalid:29500"][..], "no host is called nohost.invalid"),
        (
            &["--rdzv", "nohost.invalid:29500", "--nnodes", "2", "--node-rank", "1", "--rdzv-timeout", "0.5"],
            "no host is called nohost.invalid",
        ),
        (&["--rdzv-timeout", "0"], "a number of seconds from 0.001"),
    ] {
        let output = end(launch(&[flags, &["--", "true"]].concat()));
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{said}");
    }
}

#[test]
fn ranks_with_different_configurations_are_named_and_not_the_rank_that_ended_first() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 2);
    let script = format!(
        "[ $RANK = 1 ] && more='--set training.batch=48'; exec {ALLFOLD} train --config {config} $more"
    );
    let output = end(launch(&["-n", "3", "--", "sh", "-c", &script]));
    let said = text(&output.stderr);
    let last = said.lines().last().unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        last.starts_with("error: rank 1 has `training.batch = 48` and rank 0 has `training.batch = "),
        "{said}"
    );
}
