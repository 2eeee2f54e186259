//! Bad input of jobs on GPUs: rank 0 says in one line what is wrong and what would be right.

use super::*;

/// The only line of errors of a job that must end with this code, without the launcher's own.
fn refused(devices: &str, words: &[&str]) -> String {
    let mut job = command(words);
    job.env("ALLFOLD_STANDIN", devices).env("ALLFOLD_TIMEOUT", "20");
    let Ended { code, text, errors } = ended(job.output().unwrap());
    assert_eq!(code, Some(2), "{words:?}\n{text}{errors}");
    let lines: Vec<&str> = errors.lines().filter(|line| line.contains("error: ")).collect();
    let first = lines.first().unwrap_or_else(|| panic!("{words:?}: no error in: {errors}"));
    first.to_string()
}

#[test]
fn more_ranks_than_gpus_and_points_beyond_the_job_are_refused() {
    let bench =
        ["launch", "-n", "2", "--", "bench", "all_reduce", "--backend", "nccl", "-b", "4K", "-e", "4K"];
    let line = refused("1", &bench);
    assert!(line.contains("are on one GPU") && line.contains("give each rank a GPU"), "{line}");
    let device = [&bench[..7], &["device", "-b", "4K", "-e", "4K"]].concat();
    let line = refused("2", &device);
    assert!(line.contains("use --backend nccl"), "{line}");
    let config = config("digits-mlp.toml");
    let scale =
        ["launch", "-n", "2", "--", "scale", "--config", &config, "--set", "device=\"cuda\"", "--ranks"];
    let line = refused("2", &[&scale[..], &["1,2,8"]].concat());
    assert!(line.contains("more ranks than the 2 of this job"), "{line}");
    let line = refused("1", &[&scale[..], &["1,2"]].concat());
    assert!(line.contains("1 GPU") && line.contains("2 ranks"), "{line}");
}

#[test]
fn a_subcommand_of_scale_runs_in_one_process() {
    let line = refused("2", &["launch", "-n", "2", "--", "scale", "workload", "resnet50", "--ranks", "1,2"]);
    assert!(line.contains("runs in one process"), "{line}");
}
