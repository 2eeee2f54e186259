//! Files of a launcher's ranks: output that is written, printed, or both, on disks that are full and in folders with links.

use super::limits::limited;
use super::*;

#[test]
fn output_goes_to_files_and_with_tee_to_the_console_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().display().to_string();
    for (tee, printed) in [(&[][..], 0), (&["--tee"], 2)] {
        let flags = [&["-n", "2", "--log-dir", &logs], tee, &["--", "sh", "-c", "echo rank $RANK"]].concat();
        let output = end(launch(&flags));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(by_rank(&text(&output.stdout)).len(), printed);
        assert_eq!(text(&output.stderr).contains("start-0/rank-N.out"), tee.is_empty());
        for rank in 0..2 {
            let file = folder.path().join(format!("start-0/rank-{rank}.out"));
            assert_eq!(std::fs::read_to_string(file).unwrap(), format!("rank {rank}\n"));
        }
    }
    let output = end(launch(&["-n", "1", "--tee", "--", "true"]));
    assert_eq!(output.status.code(), Some(2), "--tee alone: {}", text(&output.stderr));
}

/// A job whose ranks left no flight records has their output.
#[test]
fn triage_without_records_says_which_files_hold_output() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().display().to_string();
    let script = "[ $RANK = 2 ] && echo up; [ $RANK = 1 ] || exec sleep 1000; \
                  while ! [ -s $0/start-0/rank-2.out ]; do sleep 0.01; done; echo no such luck >&2; exit 3";
    end(launch(&["-n", "3", "--log-dir", &logs, "--", "sh", "-c", script, &logs]));
    let says = format!(
        "error: {logs}: holds no flight records; look at the ranks' output in {logs}/start-0: rank-1.err, rank-2.out are not empty\n"
    );
    assert_eq!(triage(&[&logs]), (Some(2), says));
    let start = format!("{logs}/start-0");
    let (_, said) = triage(&[&start]);
    assert!(
        said.contains(&format!("{start}: holds no flight records; look at the ranks' output in {start}: "))
    );
    assert!(end(launch(&["-n", "3", "--log-dir", &logs, "--", "true"])).status.success());
    let (_, said) = triage(&[&logs]);
    assert!(
        said.ends_with(&format!("no flight records; the ranks' output in {logs}/start-0 is empty\n")),
        "{said}"
    );
}

/// A limit on the length of files stands in for a full disk.
#[test]
fn output_that_finds_no_room_in_its_file_is_printed_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().display().to_string();
    let flags = ["-n", "2", "--log-dir", &logs, "--", "seq", "1", "2000"];
    let output = end(limited("trap '' XFSZ; ulimit -f 2", &flags));
    let (said, printed) = (text(&output.stderr), by_rank(&text(&output.stdout)));
    assert!(output.status.success(), "{said}");
    for rank in 0..2 {
        let path = folder.path().join(format!("start-0/rank-{rank}.out"));
        let told = format!("{}: File too large", path.display());
        assert_eq!(said.lines().filter(|line| line.starts_with(&told)).count(), 1, "{said}");
        let kept = std::fs::read_to_string(path).unwrap();
        let whole = kept.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let all: BTreeSet<u32> = whole
            .lines()
            .chain(printed[&rank].iter().map(String::as_str))
            .map(|n| n.parse().unwrap())
            .collect();
        assert_eq!(all, (1..=2000).collect(), "rank {rank}");
    }
}

#[test]
fn links_in_the_folder_of_logs_are_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "kept").unwrap();
    let start = folder.path().join("logs/start-0");
    std::fs::create_dir_all(&start).unwrap();
    std::os::unix::fs::symlink(&precious, start.join("rank-0.out")).unwrap();
    let logs = folder.path().join("logs").display().to_string();
    let run = || end(launch(&["-n", "1", "--log-dir", &logs, "--", "echo", "said"]));
    let output = run();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(start.join("rank-0.out")).unwrap(), "said\n");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");

    let elsewhere = folder.path().join("elsewhere");
    std::fs::rename(&start, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &start).unwrap();
    let output = run();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("start-0 is a link"), "{said}");
}

/// A rank whose flight record does not fit on the disk reports that once, and leaves no partial record.
#[test]
fn a_flight_record_that_finds_no_room_is_told_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cnn = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");
    let logs = folder.path().join("logs").display().to_string();
    // Rank 1 is killed once rank 0 has told the loss of a step: by then each rank's record is longer than the 1 KiB that a file may hold.
    let script = format!(
        "if [ $RANK = 1 ]; then \
           (while ! grep -qs ' steps, loss ' {logs}/start-0/rank-0.err; do sleep 0.01; done; kill -9 $$) & fi; \
         exec {ALLFOLD} train --config {cnn} --set training.epochs=100000"
    );
    let flags = ["-n", "3", "--grace", "90", "--log-dir", &logs, "--tee", "--", "sh", "-c", &script];
    let output = end(limited("trap '' XFSZ; ulimit -f 2", &flags));
    let said = text(&output.stderr);
    for rank in [0, 2] {
        let told = format!("the flight record of rank {rank} cannot be written: ");
        assert_eq!(said.lines().filter(|line| line.contains(&told)).count(), 1, "{said}");
    }
    let left = folder.path().join("logs/start-0").read_dir().unwrap().map(|file| file.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("flight")).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn triage(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(ALLFOLD).arg("triage").args(args).output().unwrap();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// Where a job of which rank 1 was stopped left its records, and what it said. A busy machine may lose a healthy rank too where deadlines
/// are short: the job then runs again with longer ones.
fn job_with_a_stopped_rank(folder: &Path) -> (String, String) {
    let mut said = String::new();
    for factor in ["0.1", "0.5", "2"] {
        let folder = folder.join(factor);
        std::fs::create_dir(&folder).unwrap();
        let config = training::config(&folder, 100_000);
        let script = training::once(&folder, &config, 1, "STOP");
        let logs = folder.join("logs").display().to_string();
        let mut command = launch(&["-n", "3", "--grace", "5", "--log-dir", &logs, "--", "sh", "-c", &script]);
        command.env("ALLFOLD_TIMEOUT_FACTOR", factor);
        said = text(&end(command).stderr);
        if said.contains("\nerror: rank 1 is stopped by a signal such as SIGSTOP, and rank ") {
            return (logs, said);
        }
    }
    panic!("rank 1 is not named: {said}")
}

/// The launcher names the rank that a signal has stopped, and the command that reads the ranks' flight records; triage finds the
/// records in the launcher's folder, with the training step, the process and the time of each.
#[test]
fn a_job_with_a_stopped_rank_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let (logs, said) = job_with_a_stopped_rank(folder.path());
    let lines: Vec<&str> = said.lines().collect();
    let [.., hint, error] = lines[..] else { panic!("{said}") };
    assert_eq!(hint, format!("what each rank was in: allfold triage {logs}"), "{said}");
    assert!(error.contains(": rank 1 is lost: it gave rank "), "{said}");

    let (code, said) = triage(&[&logs]);
    assert_eq!(code, Some(0), "{said}");
    // What rank 0 recorded of rank 1, which has no record, is a line too.
    let of = |rank: &str| said.lines().find(|line| line.starts_with(rank));
    for rank in ["  rank 0: ", "  rank 2: "] {
        let line = of(rank).unwrap_or_default();
        assert!(line.contains(" in training step ") && line.contains("(process "), "{said}");
    }
    assert_eq!(of("  rank 1: "), None, "{said}");
}

/// Waits for something that a job does.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never {what}");
}

/// Without a folder for records SIGUSR2 writes no record and ends no rank: users send this signal to a job that hangs.
#[test]
fn a_job_without_a_folder_outlives_the_signal_for_records() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 100_000);
    let child = launch(&["-n", "2", "--", "train", "--config", &config]).spawn().unwrap();
    let checkpoint = |than: usize| {
        folder.path().join("checkpoints").read_dir().is_ok_and(|all| {
            let names = all.map(|file| file.unwrap().file_name().into_string().unwrap());
            names.filter_map(|name| name.get(5..13)?.parse::<usize>().ok()).any(|step| step > than)
        })
    };
    until("trains", || checkpoint(0));
    signal(&child, "-USR2");
    until("goes on", || checkpoint(40));
    signal(&child, "-INT");
    let output = ended(child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("on SIGUSR2 with --log-dir only"), "{said}");
}

/// SIGUSR2 to the launcher makes each rank of a running job write its flight record, and the job continues.
#[test]
fn a_job_under_way_writes_its_records_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 100_000);
    let logs = folder.path().join("logs");
    let place = logs.display().to_string();
    let child =
        launch(&["-n", "2", "--log-dir", &place, "--", "train", "--config", &config]).spawn().unwrap();
    // The folder has a file for its lock before any rank trains, and a rank that does not train yet writes no record.
    let is_checkpoint = |path: PathBuf| path.extension().is_some_and(|ending| ending == "safetensors");
    let checkpoint = || {
        let mut all = folder.path().join("checkpoints").read_dir().into_iter().flatten().flatten();
        all.any(|entry| is_checkpoint(entry.path()))
    };
    let records = || (0..2).all(|rank| logs.join(format!("start-0/flight-rank-{rank}.jsonl")).exists());
    until("trains", checkpoint);
    signal(&child, "-USR2");
    until("writes", records);
    let (code, said) = triage(&[&place]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("written because: it was asked for its record (SIGUSR2)").count(), 2, "{said}");
    signal(&child, "-INT");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(128 + 2));
    // The launcher and the ranks say where the records are.
    let said = text(&output.stderr);
    let asked = format!("asked every rank for its flight record, in {place}/start-0: allfold triage {place}");
    assert!(said.lines().any(|line| line == asked), "{said}");
    for rank in 0..2 {
        let said = std::fs::read_to_string(logs.join(format!("start-0/rank-{rank}.err"))).unwrap();
        let wrote =
            format!("rank {rank} wrote its flight record, {place}/start-0/flight-rank-{rank}.jsonl: ");
        assert!(said.contains(&wrote), "{said}");
    }
}

/// With `--stalled` the ranks that wait for a stopped rank write their records, the launcher says so, and the job goes on once the rank does.
#[test]
fn ranks_without_progress_write_their_records_and_the_job_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 60);
    // Rank 1 stops itself after the first checkpoint, and goes on when the test says so.
    let goes_on = folder.path().join("goes-on");
    let stopped = training::once(folder.path(), &config, 1, "STOP");
    let script = stopped.replace(
        "kill -STOP $$)",
        &format!("kill -STOP $$; until test -e {}; do sleep 0.01; done; kill -CONT $$)", goes_on.display()),
    );
    let logs = folder.path().join("logs");
    let place = logs.display().to_string();
    let flags = ["-n", "3", "--stalled", "1", "--log-dir", &place, "--", "sh", "-c", &script];
    let mut child = launch(&flags).spawn().unwrap();
    let written = |rank: u32| {
        let path = logs.join(format!("start-0/flight-rank-{rank}.jsonl"));
        std::fs::read_to_string(path).is_ok_and(|text| text.contains("no operation began or ended for 1 s"))
    };
    until("writes", || written(0) && written(2));
    let line =
        format!("ranks made no progress for 1 s and wrote their flight records: allfold triage {place}");
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|said| said == line));
    std::fs::write(goes_on, "").unwrap();
    assert_eq!(ended(child).status.code(), Some(0));
    assert!(said.all(|said| said != line));
}

fn records(logs: &Path, ranks: u32) -> usize {
    (0..ranks).filter(|rank| logs.join(format!("start-0/flight-rank-{rank}.jsonl")).exists()).count()
}

/// Ctrl-C on a job in which the other ranks wait for a stopped rank: the others write flight records that name the missing rank, and the
/// job ends before its grace period, which is longer than the test waits.
#[test]
fn a_job_that_hangs_is_ended_by_the_first_signal_and_leaves_its_records() {
    let folder = tempfile::tempdir().unwrap();
    let config = training::config(folder.path(), 100_000);
    let script = training::once(folder.path(), &config, 1, "STOP");
    let logs = folder.path().join("logs");
    let place = logs.display().to_string();
    let flags = ["-n", "3", "--grace", "1000", "--log-dir", &place, "--", "sh", "-c", &script];
    let child = launch(&flags).spawn().unwrap();
    let stopped = |process: &PathBuf| {
        let state = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    until("has a stopped rank", || living(&config).iter().any(stopped));
    signal(&child, "-INT");
    let output = ended(child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 2), "{said}");
    assert_eq!(records(&logs, 3), 2, "{said}");
    assert!(said.contains("rank 1 is stopped by a signal such as SIGSTOP: it is killed"), "{said}");
    assert!(said.contains(&format!("allfold triage {place}")), "{said}");
    let (_, told) = triage(&[&place]);
    assert!(told.contains("no record of rank 1"), "{told}");
    let out = std::fs::read_to_string(logs.join("start-0/rank-0.out")).unwrap();
    assert!(out.lines().last().unwrap().starts_with("interrupted after "), "{out}");
}

/// A signal that ends a rank leaves its flight record also where the command itself does not handle signals.
#[test]
fn an_interrupted_benchmark_leaves_the_record_of_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let bench = ["bench", "all_reduce", "--backend", "tcp", "-b", "4", "-e", "1G", "-n", "2000"];
    let (child, out) =
        started(&[&["-n", "2", "--grace", "50", "--log-dir", &place, "--tee", "--"][..], &bench].concat(), 1);
    let mut lines = out.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(" float ")), "no row");
    signal(&child, "-INT");
    lines.for_each(drop);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(128 + 2), "{}", text(&output.stderr));
    assert_eq!(records(folder.path(), 2), 2, "{}", text(&output.stderr));
    for rank in 0..2 {
        let record = std::fs::read_to_string(folder.path().join(format!("start-0/flight-rank-{rank}.jsonl")));
        assert!(record.unwrap().starts_with("{\"flight\":1"));
    }
}

#[test]
fn records_that_are_empty_or_were_not_completed_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let start = folder.path().join("start-1");
    std::fs::create_dir(&start).unwrap();
    std::fs::create_dir(folder.path().join("start-0")).unwrap();
    let place = folder.path().display().to_string();
    std::fs::write(start.join("flight-rank-1.jsonl"), "").unwrap();
    std::fs::write(start.join("flight-rank-2.77.part"), "").unwrap();
    let (code, said) = triage(&[&place]);
    assert_eq!(code, Some(2), "{said}");
    let named = |said: &str| {
        assert!(said.contains("flight-rank-1.jsonl: it is empty; left out"), "{said}");
        assert!(said.contains("flight-rank-2.77.part: a flight record that was not completed"), "{said}");
    };
    named(&said);
    let whole = "{\"flight\":1,\"rank\":0,\"size\":3,\"reason\":\"another rank failed\"}\n";
    std::fs::write(start.join("flight-rank-0.jsonl"), whole).unwrap();
    let (code, said) = triage(&[&place]);
    assert_eq!(code, Some(0), "{said}");
    named(&said);
    assert!(
        said.contains("of 2 starts, ") && said.contains("no record of ranks 1, 2: they were killed"),
        "{said}"
    );
    // A new run with this folder removes the old records.
    assert!(end(launch(&["-n", "1", "--log-dir", &place, "--", "true"])).status.success());
    assert_eq!(start.read_dir().unwrap().count(), 0);
}

/// Rank 1 was late in the first operation, and rank 0 then did not enter the second one: rank 1, which was late before, is not taken
/// for the cause.
#[test]
fn a_rank_that_was_late_before_a_timeout_is_not_named_as_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let entry = |rank: u32, sequence: u32, state: &str, started: u32, ended: u32| {
        format!(
            "{{\"group\":0,\"rank\":{rank},\"size\":2,\"sequence\":{sequence},\"operation\":\"all_reduce\",\"count\":8,\"dtype\":\"f32\",\
             \"op\":\"sum\",\"algorithm\":\"ring\",\"state\":\"{state}\",\"issued_us\":{started}.0,\"started_us\":{started}.0,\
             \"ended_us\":{ended}.0}}\n"
        )
    };
    let record = |rank: u32, entries: String| {
        let header = format!("{{\"flight\":1,\"rank\":{rank},\"size\":2,\"reason\":\"a deadline\"}}\n");
        let path = folder.path().join(format!("flight-rank-{rank}.jsonl"));
        std::fs::write(path, header + &entries).unwrap();
    };
    record(0, entry(0, 0, "done", 10, 5000));
    record(1, entry(1, 0, "done", 4000, 5000) + &entry(1, 1, "failed", 6000, 9000));
    let (code, text) = triage(&[folder.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("rank 0 never entered operation 1, all_reduce(8 x f32"), "{text}");
    let earlier = "earlier, in the operations that ended well on all ranks, rank 1 was waited for longest";
    assert!(lines.iter().any(|line| line.starts_with(earlier)), "{text}");
}

/// Of the errors in the operation that did not end, the one that names the missing rank is the headline. If the headline is about other
/// ranks, what they recorded of a rank without a record is quoted.
#[test]
fn what_others_recorded_of_a_rank_without_a_record_is_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let entry = |rank: u32, sequence: u32, count: u32, error: &str| {
        format!(
            "{{\"group\":0,\"rank\":{rank},\"size\":3,\"sequence\":{sequence},\"operation\":\"all_gather\",\"count\":{count},\
             \"dtype\":\"f32\",\"state\":\"failed\",\"issued_us\":1.0,\"error\":\"{error}\"}}\n"
        )
    };
    let told = |entries: [String; 2]| {
        for (rank, entries) in entries.into_iter().enumerate() {
            let header = format!("{{\"flight\":1,\"rank\":{rank},\"size\":3,\"reason\":\"a failure\"}}\n");
            std::fs::write(folder.path().join(format!("flight-rank-{rank}.jsonl")), header + &entries)
                .unwrap();
        }
        let (code, text) = triage(&[folder.path().to_str().unwrap()]);
        assert_eq!(code, Some(0), "{text}");
        text.lines().map(String::from).collect::<Vec<_>>()
    };
    let awaits = "deadline of 15s exceeded by rank 1 in all_gather(8 x f32) as operation 0, round 1, waiting for rank 0";
    let names = "deadline of 15s exceeded by rank 1 in all_gather(8 x f32) as operation 0, round 0: rank 2 never entered it";
    let lines = told([entry(0, 0, 8, awaits), entry(1, 0, 8, names)]);
    let headline =
        format!("ranks 0, 1 did not finish operation 0, all_gather(8 x f32); rank 1 says: {names}");
    // The two records contradict each other, and rank 2 has none.
    assert_eq!(lines[..2], ["undecided, of these causes:", &headline]);
    assert!(lines.contains(&"not known: what rank 2 did: there is no dump of it".into()), "{lines:?}");

    let lost = "rank 2 is lost: it returned early, after 1 operations";
    let lines = told([entry(0, 0, 8, "no") + &entry(0, 1, 8, lost), entry(1, 0, 9, "no")]);
    assert!(lines[0].starts_with("diverged at operation 0"), "{lines:?}");
    let quote = format!("  rank 0 recorded of rank 2: {lost}");
    assert!(lines.contains(&quote), "{lines:?}");
}
