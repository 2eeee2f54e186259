//! Bad input of jobs on GPUs: rank 0 says in one line what is wrong and what would be right.

use super::*;

/// The only line of errors of a job that must end with this code, without the launcher's own.
fn refused(devices: &str, words: &[&str]) -> String {
    refused_with(&[("ALLFOLD_STANDIN", devices)], words)
}

fn refused_with(variables: &[(&str, &str)], words: &[&str]) -> String {
    let mut job = command(words);
    job.env("ALLFOLD_TIMEOUT", "20").envs(variables.iter().copied());
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

/// The variables of a job in which rank 1 has another NCCL.
fn other_nccl(version: &'static str) -> [(&'static str, &'static str); 2] {
    [("ALLFOLD_STANDIN_RANK", "1"), ("ALLFOLD_STANDIN_NCCL", version)]
}

#[test]
fn a_rank_without_nccl_or_with_another_version_is_named_by_rank_0() {
    let bench =
        ["launch", "-n", "3", "--", "bench", "all_reduce", "--backend", "nccl", "-b", "4K", "-e", "4K"];
    let line = refused_with(&other_nccl("2.17"), &bench);
    // Rank 1 ends at the same time, with the reason, and the launcher may be told of it first.
    let own = line.starts_with("[rank 1]") && line.contains("NCCL 2.17.1 is too old");
    assert!(own || line.contains("rank 1 has no NCCL; `allfold doctor` there says why"), "{line}");
    let line = refused_with(&other_nccl("2.21"), &bench);
    assert!(
        line.contains("rank 1 has NCCL 2.21.5 and rank 0 has 2.30.3: all ranks need the same version"),
        "{line}"
    );
    let config = config("digits-mlp.toml");
    let train = ["launch", "-n", "3", "--", "train", "--config", &config, "--device", "cuda", "--steps", "2"];
    let line = refused_with(&other_nccl("2.21"), &[&train[..], &["--set", "exchange=\"nccl\""]].concat());
    assert!(line.contains("rank 1 has NCCL 2.21.5"), "{line}");
    let mut chosen = command(&train);
    chosen.envs(other_nccl("2.21"));
    let ended = ended(chosen.output().unwrap());
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert!(ended.text.contains("summed by the host: rank 1 has NCCL 2.21.5"), "{}", ended.text);
}

#[test]
fn ranks_that_a_variable_gives_one_gpu_are_told_so() {
    let bench =
        ["launch", "-n", "2", "--", "bench", "all_reduce", "--backend", "nccl", "-b", "4K", "-e", "4K"];
    let line = refused_with(&[("ALLFOLD_STANDIN", "1"), ("CUDA_VISIBLE_DEVICES", "0")], &bench);
    assert!(line.contains("give each rank a GPU of its own (CUDA_VISIBLE_DEVICES is \"0\" here)"), "{line}");
}

#[test]
fn nodes_without_a_secret_are_refused_before_they_connect() {
    let launch = ["launch", "-n", "1", "--nnodes", "2", "--node-rank", "0", "--rdzv", "10.255.255.1:29500"];
    let bench = ["--", "bench", "all_reduce", "--backend", "nccl", "-b", "4K", "-e", "4K"];
    let line = refused("1", &[&launch[..], &bench].concat());
    assert!(line.contains("ALLFOLD_SECRET_FILE"), "{line}");
}

#[test]
fn a_subcommand_of_scale_runs_in_one_process() {
    let line = refused("2", &["launch", "-n", "2", "--", "scale", "workload", "resnet50", "--ranks", "1,2"]);
    assert!(line.contains("runs in one process"), "{line}");
}
