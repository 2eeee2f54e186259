//! Failures at arbitrary moments, tried several times: TRIALS=200 for a long run.

use super::*;
use training::{config, hashes, once, train};

/// The checkpoints that a run of 8 steps leaves.
const KEPT: [&str; 3] =
    ["step-00000004.safetensors", "step-00000006.safetensors", "step-00000008.safetensors"];

/// How many times each test tries its failure.
fn trials() -> u32 {
    std::env::var("TRIALS").ok().and_then(|count| count.parse().ok()).unwrap_or(2)
}

/// The files of a folder, sorted.
fn files(folder: &Path) -> Vec<String> {
    let all = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

fn run(config: &str, more: &[&str]) -> Child {
    let mut command = Command::new(ALLFOLD);
    command.args(["train", "--config", config, "--ranks", "2"]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn of_two_runs_in_one_checkpoint_folder_one_is_refused_and_the_other_unharmed() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8);
    let checkpoints = folder.path().join("checkpoints");
    let whole = hashes(&ended(run(&config, &[])));
    std::fs::remove_dir_all(&checkpoints).unwrap();
    let mut at_once = 0;
    for trial in 0..trials() {
        // In odd trials both runs resume, from an empty folder, so that only the lock can refuse one.
        let more: &[&str] = if trial % 2 == 0 { &[] } else { &["--set", "checkpoint.resume=true"] };
        let first = run(&config, more);
        std::thread::sleep(Duration::from_millis(u64::from(trial * 7 % 40)));
        let second = run(&config, more);
        let mut outputs = [first, second].map(ended);
        outputs.sort_by_key(|output| output.status.code());
        let [good, refused] = &outputs;
        assert_eq!(hashes(good), whole, "trial {trial}");
        let said = text(&refused.stderr);
        let over = refused.status.success();
        let lock = said.contains("another run writes its checkpoints there");
        at_once += u32::from(lock);
        let named = lock || said.contains("has checkpoints already");
        // A resuming run that began after the other's end succeeds: it resumes from the last step and has nothing left to do.
        let after = over && trial % 2 == 1 && hashes(refused) == whole;
        assert!(
            after || (refused.status.code() == Some(2) && named && said.lines().count() == 1),
            "{trial}: {said}"
        );
        assert_eq!(files(&checkpoints), KEPT);
        std::fs::remove_dir_all(&checkpoints).unwrap();
    }
    println!("{at_once} of {} were refused for the lock", trials());
    assert!(at_once > 0, "no two runs ran at once");
}

/// Trains on a small disk that a checkpoint fills, lists the files left there, enlarges the disk, and resumes.
const FILLS: &str = r#"
mount -t tmpfs -o size=$2 none "$1" || exit 77
"$3" train --config "$4" --ranks 2 >"$5/first" 2>&1; echo "first $?"
echo "left $(ls -A "$1" | tr '\n' ' ')"
mount -o remount,size=64m "$1"
"$3" train --config "$4" --ranks 2 --set checkpoint.resume=true >"$5/second" 2>&1; echo "second $?"
echo "end $(ls -A "$1" | tr '\n' ' ')"
"#;

#[test]
fn a_disk_that_fills_at_any_write_of_a_checkpoint_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 8);
    let plain = std::fs::read_to_string(&config).unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let whole = hashes(&ended(run(&config, &[])));
    let size = std::fs::metadata(checkpoints.join("step-00000008.safetensors")).unwrap().len();
    std::fs::remove_dir_all(&checkpoints).unwrap();
    std::fs::create_dir(&checkpoints).unwrap();
    let count = trials();
    let mut full = 0;
    let text_of =
        |sharded: bool| plain.replace("[checkpoint]\n", &format!("[checkpoint]\nsharded = {sharded}\n"));
    for trial in 0..count {
        // In odd trials each rank writes its part.
        let sharded = trial % 2 == 1;
        std::fs::write(&config, text_of(sharded)).unwrap();
        // From a page to the size of four files, which is what the run needs: three are kept while a fourth is written.
        let capacity = 4096 * (1 + u64::from(trial) * (4 * size / 4096) / u64::from(count));
        let [place, logs] = [&checkpoints, folder.path()].map(|path| path.display().to_string());
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            FILLS,
            "sh",
            &place,
            &capacity.to_string(),
            ALLFOLD,
            &config,
            &logs,
        ]);
        let output = command.output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            return println!("SKIP: no disk of its own can be mounted here; it needs root");
        };
        let said = text(&output.stdout);
        let line = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let log = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let first = log("first");
        if line("first ") == "1" {
            full += 1;
            let (last, lines) =
                (first.lines().last().unwrap(), first.lines().filter(|line| line.contains("error")));
            assert!(
                last.contains("checkpoints") && last.contains(": No space left on device"),
                "{capacity}: {first}"
            );
            assert_eq!(lines.count(), 1, "{first}");
            assert!(!line("left ").contains("tmp"), "{capacity}: {said}");
        } else {
            assert_eq!(line("first "), "0", "{capacity}: {first}");
        }
        assert_eq!(line("second "), "0", "{capacity}: {}", log("second"));
        let ended: Vec<String> =
            log("second").lines().filter(|line| line.contains("_hash ")).map(String::from).collect();
        assert_eq!(ended, whole, "{capacity}");
        let kept = KEPT.join(" ");
        assert_eq!(line("end "), if sharded { kept.replace(".safetensors", ".sharded") } else { kept });
    }
    println!("{full} of {count} disks were full");
    assert!(full > 0, "no disk was full");
}

#[test]
fn a_rank_that_is_stopped_under_elastic_is_replaced_and_the_weights_are_those_of_a_whole_run() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 60);
    let whole = train(&config, &["--backend", "threads"]);
    for trial in 0..trials() {
        // Each trial stops another rank; rank 0 is the rank that writes the checkpoints.
        let rank = trial % 4;
        let script = once(folder.path(), &config, rank, "STOP");
        let script = script.replace("kill -STOP", &format!("sleep 0.0{}; kill -STOP", trial % 10));
        let logs = folder.path().join("logs");
        let place = logs.display().to_string();
        let flags = ["-n", "4", "--grace", "1", "--max-restarts", "2", "--elastic", "--log-dir", &place];
        let mut command = launch(&[&flags[..], &["--", "sh", "-c", &script]].concat());
        command.env("ALLFOLD_TIMEOUT_FACTOR", "0.1");
        let output = end(command);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{trial}: {said}");
        let lines: Vec<&str> = said.lines().collect();
        let again = format!(
            "rank {rank} failed, stopped by a signal and lost by the others; starting it again (1 of 2)"
        );
        assert!(
            matches!(lines[..], [place, line] if place.contains("rank-N.out") && line == again),
            "{trial}: {said}"
        );
        let last = if rank == 0 { "start-1/rank-0.out" } else { "start-0/rank-0.out" };
        let end = std::fs::read_to_string(logs.join(last)).unwrap();
        assert_eq!(end.lines().filter(|line| line.contains("_hash ")).collect::<Vec<_>>(), whole, "{trial}");
        let checkpoints = folder.path().join("checkpoints");
        assert!(
            files(&checkpoints).iter().all(|name| name.ends_with(".safetensors")),
            "{:?}",
            files(&checkpoints)
        );
        std::fs::remove_dir_all(&checkpoints).unwrap();
        std::fs::remove_dir_all(&logs).unwrap();
    }
}
