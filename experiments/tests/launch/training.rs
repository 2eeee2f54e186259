//! Training by launched processes: the same bits as on threads, lost ranks, and refused runs.

use super::*;

/// A configuration in a folder of its own, with checkpoints there: a CNN whose steps take tens of milliseconds, so that a rank can be
/// killed between two of them.
pub(super) fn config(folder: &Path, steps: u64) -> String {
    let cnn = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let checkpoints = folder.join("checkpoints").display().to_string();
    let text = std::fs::read_to_string(cnn).unwrap();
    let text = text.replace("[training]\n", &format!("[training]\nmax_steps = {steps}\n"));
    let text = text.replace("[32, 64]", "[16, 32]");
    let path = folder.join("run.toml");
    std::fs::write(&path, format!("{text}\n[checkpoint]\nevery = 2\ndir = \"{checkpoints}\"\n")).unwrap();
    path.display().to_string()
}

/// The hashes at the end of a run's output.
pub(super) fn hashes(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let lines = said.lines().map(|line| line.trim_start_matches("[rank 0] ").to_string());
    let hashes: Vec<String> = lines.filter(|line| line.contains("_hash ")).collect();
    assert_eq!(hashes.len(), 2, "{said}");
    hashes
}

pub(super) fn train(config: &str, more: &[&str]) -> Vec<String> {
    let mut command = Command::new(ALLFOLD);
    command.args(["train", "--config", config, "--ranks", "4"]).args(more).stdout(Stdio::piped());
    let hashes = hashes(&end(command));
    std::fs::remove_dir_all(Path::new(config).parent().unwrap().join("checkpoints")).unwrap();
    hashes
}

/// Rank 0 prints what it trains at the start, and its progress while it trains.
#[test]
fn a_launched_run_is_heard_before_its_end() {
    let mlp = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    let mut child = launch(&["-n", "2", "--", "train", "--config", mlp, "--set", "training.epochs=100000"])
        .spawn()
        .unwrap();
    let line = |from: &mut dyn BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line
    };
    let head = line(&mut BufReader::new(child.stdout.take().unwrap()));
    assert!(head.starts_with("[rank 0] mlp with ") && head.contains(", ddp, 2 ranks, "), "{head}");
    let log = line(&mut BufReader::new(child.stderr.take().unwrap()));
    assert!(
        log.starts_with("[rank 0] ") && log.contains(" steps, ") && log.trim_end().ends_with("so far"),
        "{log}"
    );
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    assert!(!ended(child).status.success());
}

/// A signal to the launcher ends the ranks; rank 0 reports its last step, in its text and in its records.
#[test]
fn an_interrupted_launched_run_leaves_what_it_did() {
    let mlp = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("part.jsonl");
        let train = ["-n", "2", "--", "train", "--config", mlp, "--set", "training.epochs=100000", "--json"];
        let mut child = launch(&[&train[..], &[json.to_str().unwrap()]].concat()).spawn().unwrap();
        // The first line of progress comes after some steps.
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut progress = String::new();
        errors.read_line(&mut progress).unwrap();
        assert!(progress.contains(" of 2300000 steps, loss "), "{progress}");
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let output = ended(child);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{said}");
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("[rank 0] interrupted after ") && last.contains(" steps: loss "), "{said}");
        let steps: u64 = last.split_whitespace().nth(4).unwrap().parse().unwrap();
        let records = std::fs::read_to_string(&json).unwrap();
        let record: serde_json::Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
        assert_eq!(record["kind"], "train_progress");
        assert!(record["step"].as_u64() >= Some(steps - 1), "{record}");
    }
}

/// A signal to one rank of a run that writes checkpoints ends all ranks. Regression: the launcher named the rank that ended first.
#[test]
fn a_rank_that_was_asked_to_end_is_named_and_not_the_rank_that_ended_first() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 100_000);
    let output = end(launch(&["-n", "3", "--", "sh", "-c", &once(folder.path(), &config, 1, "TERM")]));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{said}");
    let cause = said.lines().rfind(|line| line.starts_with("error: ")).unwrap();
    let elsewhere = "killed by SIGTERM: rank 1 was asked to end by SIGTERM, which ends the run";
    assert!(cause.starts_with("error: rank 1 failed first") || cause.ends_with(elsewhere), "{said}");
}

#[test]
fn four_processes_train_to_the_bits_of_threads_and_of_virtual_time() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8);
    // With features in which ranks could differ: batch norms over all ranks, half precision, micro-batches.
    let more = [
        "model.sync_batch_norm=true",
        "precision.amp=f16",
        "precision.loss_scale=65536",
        "training.accumulate=2",
        "training.max_steps=20",
    ];
    for more in [&[][..], &more[..]] {
        let sets: Vec<&str> = more.iter().flat_map(|set| ["--set", set]).collect();
        let threads = train(&config, &[&["--backend", "threads"], &sets[..]].concat());
        assert_eq!(
            train(&config, &[&["--backend", "sim", "--topology", "switch"], &sets[..]].concat()),
            threads
        );
        let flags = ["-n", "4", "--", "train", "--config", &config];
        let processes = end(launch(&[&flags[..], &sets].concat()));
        assert_eq!(hashes(&processes), threads);
        std::fs::remove_dir_all(folder.path().join("checkpoints")).unwrap();
    }
}

/// A restart would take the checkpoints of another run for its own, and no run can resume from a broken checkpoint: all ranks
/// end with code 2, whichever rank read the checkpoint.
#[test]
fn what_was_asked_wrongly_is_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8);
    let theirs = folder.path().join("checkpoints/step-00000002.safetensors");
    std::fs::create_dir(theirs.parent().unwrap()).unwrap();
    std::fs::write(&theirs, "another run's").unwrap();
    for more in [&[][..], &["--elastic"]] {
        for (set, says) in [
            ("checkpoint.resume=false", "has checkpoints already"),
            ("checkpoint.resume=true", "is no safetensors file"),
        ] {
            let train = ["--", "train", "--config", &config, "--set", set];
            let flags = [&["-n", "2", "--max-restarts", "2"], more, &train].concat();
            let output = end(launch(&flags));
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(says) && !said.contains("starting"), "{said}");
            assert!(theirs.exists());
        }
    }
}

#[test]
fn a_launchers_processes_do_not_train_alone_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 2);
    for backend in ["threads", "sim"] {
        let train = ["-n", "2", "--", "train", "--config", &config, "--ranks", "2", "--backend", backend];
        let output = end(launch(&train));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("the launcher has started 2 processes: leave --backend out"), "{said}");
    }
    assert!(!folder.path().join("checkpoints").exists());
}

/// A restarted run would compute the same numbers and diverge again, so no rank is restarted, whichever rank noticed first.
#[test]
fn what_diverged_is_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8);
    let flags = ["-n", "2", "--max-restarts", "2", "--", "train", "--config", &config, "--set"];
    let output = end(launch(&[&flags[..], &["optimiser.lr=1e30", "--set", "checkpoint.every=1"]].concat()));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(65), "{said}");
    assert!(said.contains("the newest checkpoint, ") && !said.contains("starting"), "{said}");
}

/// Two nodes whose processes do not see each other and so share no memory, as on two hosts. Ranks of one node exchange
/// messages through shared memory (the second time, over sockets too), ranks of different nodes over sockets.
#[test]
fn processes_of_two_hosts_train_to_the_bits_of_threads() {
    let apart = ["--pid", "--fork", "--mount-proc"];
    let can = Command::new("unshare").args(apart).arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        println!("SKIP: namespaces of processes cannot be made here; they need root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8);
    let threads = train(&config, &["--backend", "threads"]);
    for shared in ["on", "off"] {
        let at = unused();
        let node = |node: &str| {
            let inside =
                launch(&["-n", "2", "--nnodes", "2", "--node-rank", node, "--rdzv", &at, "--", "train"]);
            let mut command = Command::new("unshare");
            command.args(apart).arg(ALLFOLD).args(inside.get_args()).args(["--config", &config]);
            for (name, _) in inside.get_envs() {
                command.env_remove(name);
            }
            command.env("ALLFOLD_SHARED_MEMORY", shared);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        };
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| end(node("1")));
            (end(node("0")), second.join().unwrap())
        });
        assert!(second.status.success(), "{}", text(&second.stderr));
        assert_eq!(hashes(&first), threads, "shared memory {shared}");
        std::fs::remove_dir_all(folder.path().join("checkpoints")).unwrap();
    }
}

/// A shell script that trains, and that sends rank `rank` a signal once there is a checkpoint, unless the rank was restarted.
pub(super) fn once(folder: &Path, config: &str, rank: u32, signal: &str) -> String {
    format!(
        "if [ $RANK = {rank} ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then \
           (while ! ls {0}/step-*.safetensors >/dev/null 2>&1; do sleep 0.005; done; kill -{signal} $$) & fi; \
         exec {ALLFOLD} train --config {config}",
        folder.join("checkpoints").display()
    )
}

fn killed_once(folder: &Path, config: &str) -> String {
    once(folder, config, 2, "9")
}

#[test]
fn a_rank_killed_in_training_is_started_again_to_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    // Long enough that the rank to be killed still runs when the first checkpoint is seen.
    let config = config(folder.path(), 60);
    let whole = train(&config, &["--backend", "threads"]);
    let script = killed_once(folder.path(), &config);
    let logs = folder.path().join("logs");
    let logs = logs.display().to_string();
    let args = ["-n", "4", "--max-restarts", "2", "--log-dir", &logs, "--", "sh", "-c", &script];
    let output = end(launch(&args));
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("rank 2 failed first, killed by SIGKILL"), "{said}");
    let end = std::fs::read_to_string(Path::new(&logs).join("start-1/rank-0.out")).unwrap();
    let ended: Vec<&str> = end.lines().filter(|line| line.contains("_hash ")).collect();
    assert_eq!(ended, whole);
    // The other ranks' records name the lost rank. Triage reads the only start with records and finds none of that rank.
    let mut triage = Command::new(ALLFOLD);
    triage.args(["triage", &logs]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = triage.output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("no record of rank 2"), "{said}");
}

#[test]
fn a_rank_started_again_joins_the_survivors_at_the_next_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 60);
    let whole = train(&config, &["--backend", "threads"]);
    let script = killed_once(folder.path(), &config);
    let logs = folder.path().join("logs");
    let place = logs.display().to_string();
    let args =
        ["-n", "4", "--max-restarts", "2", "--elastic", "--log-dir", &place, "--", "sh", "-c", &script];
    let output = end(launch(&args));
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("rank 2 failed, killed by SIGKILL; starting it again (1 of 2)"), "{said}");
    // Rank 0 is still the same process, and ends with the weights of a run without a failure.
    let read = |file: &str| std::fs::read_to_string(logs.join(file)).unwrap_or_default();
    let end = read("start-0/rank-0.out");
    assert_eq!(end.lines().filter(|line| line.contains("_hash ")).collect::<Vec<_>>(), whole);
    assert!(read("start-0/rank-0.err").contains("ranks 0, 1, 3 are left"), "{}", read("start-0/rank-0.err"));
    assert!(logs.join("start-1/rank-2.out").exists() && !logs.join("start-1/rank-0.out").exists());
}

/// The steps for which an event file has a loss.
fn steps_with_a_loss(events: &[u8]) -> BTreeSet<u64> {
    let (mut rest, mut steps) = (events, BTreeSet::new());
    while let Some((length, after)) = rest.split_first_chunk() {
        // The length's checksum, the event, the event's checksum.
        let (event, next) = after[4..].split_at(u64::from_le_bytes(*length) as usize);
        if event.windows(6).any(|bytes| bytes == b"\x0a\x04loss") {
            // The time's nine bytes, the field's number, then seven bits in each byte.
            let digits = event[10..].iter().scan(true, |more, byte| {
                std::mem::replace(more, byte & 128 != 0).then_some(u64::from(byte & 127))
            });
            steps.insert((0..).zip(digits).map(|(at, bits)| bits << (7 * at)).sum());
        }
        rest = &next[4..];
    }
    steps
}

#[test]
fn tensorboard_sees_the_steps_after_a_rank_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 60);
    let events = folder.path().join("events");
    let script = killed_once(folder.path(), &config).replace("$RANK = 2", "$RANK = 1");
    let script = format!("{script} --tensorboard {}", events.display());
    let output = end(launch(&["-n", "2", "--max-restarts", "2", "--elastic", "--", "sh", "-c", &script]));
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("rank 1 failed, killed by SIGKILL"), "{said}");
    let files: Vec<PathBuf> = events.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "rank 0 is the process that it was: {files:?}");
    assert_eq!(steps_with_a_loss(&std::fs::read(&files[0]).unwrap()), (0..60).collect());
}

#[test]
fn ranks_of_two_nodes_that_are_started_again_join_the_survivors_of_both() {
    let folder = tempfile::tempdir().unwrap();
    // From step 20 to the end there is a checkpoint that the script waits for, although old checkpoints are removed.
    let config = config(folder.path(), 98);
    let whole = train(&config, &["--backend", "threads"]);
    // Rank 2 of the second node is killed once there is a checkpoint, and rank 1 of the first at a later one: each node
    // counts one restart, and the world two.
    let checkpoints = folder.path().join("checkpoints");
    let script = format!(
        "dies() {{ (while ! ls {0}/$1 >/dev/null 2>&1; do sleep 0.005; done; kill -9 $$) & }}; \
         [ $RANK$TORCHELASTIC_RESTART_COUNT = 20 ] && dies 'step-*.safetensors'; \
         [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && dies 'step-*[2-9][0-9].safetensors'; \
         exec {ALLFOLD} train --config {config}",
        checkpoints.display()
    );
    let (at, logs) = (unused(), folder.path().join("logs"));
    let node = |node: &str| {
        let place = logs.join(node).display().to_string();
        let nodes = ["-n", "2", "--nnodes", "2", "--node-rank", node, "--rdzv", &at];
        let rest = ["--max-restarts", "2", "--elastic", "--log-dir", &place, "--", "sh", "-c", &script];
        launch(&[&nodes[..], &rest[..]].concat()).spawn().unwrap()
    };
    let (first, second) = (node("0"), node("1"));
    let outputs = [first.wait_with_output().unwrap(), second.wait_with_output().unwrap()];
    for (output, rank) in outputs.iter().zip(["rank 1", "rank 2"]) {
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains(&format!("{rank} failed, killed by SIGKILL; starting it again (1 of 2)")),
            "{said}"
        );
    }
    let end = std::fs::read_to_string(logs.join("0/start-0/rank-0.out")).unwrap_or_default();
    assert_eq!(end.lines().filter(|line| line.contains("_hash ")).collect::<Vec<_>>(), whole);
}

#[test]
fn ranks_that_cannot_find_each_other_say_why_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 2);
    let run = |variables: &[(&str, &str)]| {
        let mut command = Command::new(ALLFOLD);
        command.args(["train", "--config", &config]).envs(variables.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        end(command)
    };
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "short").unwrap();
    for (variables, code, says) in [
        (&[("RANK", "1")][..], 2, "WORLD_SIZE is not set"),
        (&[("RANK", "4"), ("WORLD_SIZE", "4")], 2, "RANK is `4`: WORLD_SIZE is 4"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], 2, "MASTER_ADDR is not set"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "1"), ("ALLFOLD_SECRET_FILE", secret.to_str().unwrap())],
            2,
            "the secret in",
        ),
        (&[("RANK", "0"), ("WORLD_SIZE", "1"), ("ALLFOLD_SECURITY", "tls")], 2, "it needs a secret"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "1"), ("ALLFOLD_RENDEZVOUS_TIMEOUT", "1e19")],
            2,
            "ALLFOLD_RENDEZVOUS_TIMEOUT is `1e19`: a number of seconds",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "1"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")],
            2,
            "PMI_SIZE is 2: unset RANK",
        ),
    ] {
        let output = run(variables);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{variables:?}: {said}");
        assert!(said.contains(says) && said.lines().count() == 1, "{variables:?}: {said}");
    }
    assert!(run(&[("RANK", "0"), ("WORLD_SIZE", "1")]).status.success(), "one rank meets nobody");
}
