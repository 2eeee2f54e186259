#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! `--backend mpi`: training in a job of mpirun gives the bits of threads, and a benchmark's results are checked.
//! Without `mpirun` the tests print SKIP.

use std::path::Path;
use std::process::{Command, Output, Stdio};

const ALLFOLD: &str = env!("CARGO_BIN_EXE_allfold");
const CNN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-cnn.toml");

/// Runs four processes of this program under mpirun; `None` without mpirun.
fn job(args: &[&str]) -> Option<Output> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("SKIP: no mpirun here; scripts/install-mpi.sh installs it");
        return None;
    }
    let mut command = Command::new("mpirun");
    command
        .args(["-n", "4", "--allow-run-as-root", "--oversubscribe", "--timeout", "150", ALLFOLD])
        .args(args);
    // A folder of its own for each job: two jobs that start at once race to create Open MPI's shared one, and one of them fails.
    let session = tempfile::tempdir().unwrap();
    command.env("OMPI_MCA_orte_tmpdir_base", session.path());
    command.env("OMPI_MCA_mpi_yield_when_idle", "1").stdin(Stdio::null());
    Some(command.output().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn hashes(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let all = text(&output.stdout);
    let lines: Vec<String> = all.lines().filter(|line| line.contains("_hash ")).map(str::to_string).collect();
    assert_eq!(lines.len(), 2, "{all}");
    lines
}

#[test]
fn four_processes_of_an_mpi_job_train_to_the_bits_of_threads() {
    // With features in which ranks could differ: batch norms over all ranks, half precision, micro-batches.
    let more = [
        "model.sync_batch_norm=true",
        "precision.amp=f16",
        "precision.loss_scale=65536",
        "training.accumulate=2",
    ];
    let more: Vec<&str> = more.iter().flat_map(|set| ["--set", set]).collect();
    let train = [&["train", "--config", CNN, "--steps", "20"], &more[..]].concat();
    let Some(mpi) = job(&[&train[..], &["--backend", "mpi"]].concat()) else { return };
    let mut threads = Command::new(ALLFOLD);
    threads.args(train).args(["--backend", "threads", "--ranks", "4"]);
    assert_eq!(hashes(&mpi), hashes(&threads.output().unwrap()));
}

#[test]
fn a_benchmark_in_an_mpi_job_is_told_once_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("records.jsonl");
    let bench =
        ["bench", "all_reduce", "--backend", "mpi", "--ranks", "4", "-b", "1K", "-e", "64K", "-f", "64"];
    let more = ["-n", "2", "-w", "1", "--json", records.to_str().unwrap()];
    for (path, check) in [("messages", "0"), ("native", "N/A")] {
        let Some(output) = job(&[&bench[..], &more[..], &["--path", path]].concat()) else { return };
        let said = text(&output.stdout);
        assert!(output.status.success(), "{said}{}", text(&output.stderr));
        assert_eq!(said.matches("# allfold bench all_reduce").count(), 1, "{said}");
        assert!(said.contains(check), "{said}");
        let kept = std::fs::read_to_string(Path::new(&records)).unwrap();
        assert!(kept.contains(&format!("\"path\":\"{path}\"")), "{kept}");
    }
}
