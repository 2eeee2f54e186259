//! `train --device cuda` over processes.

use super::*;
use std::io::{BufRead, BufReader};
use std::process::Child;

const SHORT: [&str; 2] = ["--set", "training.max_steps=4"];

fn train(ranks: &str, flags: &[&str]) -> Vec<String> {
    let config = config("digits-mlp.toml");
    let words = ["launch", "-n", ranks, "--", "train", "--config", &config, "--device", "cuda"];
    [&words[..], &SHORT, flags].concat().into_iter().map(String::from).collect()
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// The record of the last step.
fn last(path: &std::path::Path) -> serde_json::Value {
    records(path)
        .into_iter()
        .rfind(|record| record["kind"] == "train" && record["losses_hash"].is_string())
        .unwrap()
}

#[test]
fn the_exchange_over_processes_is_named_and_every_one_gives_the_losses_of_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let mut losses: Vec<(String, f64, serde_json::Value)> = Vec::new();
    for (exchange, named) in [
        ("auto", "native NCCL 2.30.3"),
        ("nccl", "native NCCL 2.30.3"),
        ("scheduled", "schedules over NCCL 2.30.3"),
        ("device", "device copies between processes: the configuration chooses it"),
        ("host", "the host: the configuration chooses it"),
    ] {
        let file = folder.path().join(exchange);
        let (set, json) = (format!("exchange=\"{exchange}\""), file.display().to_string());
        let text = said(&words(&train("2", &["--set", &set, "--json", &json])));
        assert!(text.contains(&format!("gradients summed by {named}")), "{exchange}: {text}");
        let end = last(&file);
        assert_eq!(end["exchange"], named, "{end}");
        // What was not timed alone is not recorded as a time.
        for part in ["forward_us", "exposed_us", "optimiser_us"] {
            assert!(end[part].is_null(), "{part}: {end}");
        }
        assert!(end["backward_us"].as_f64().unwrap() > 0.0, "{end}");
        losses.push((exchange.into(), end["loss"].as_f64().unwrap(), end["losses_hash"].clone()));
    }
    let (_, host, bits) = losses.last().unwrap().clone();
    for (exchange, loss, hash) in losses {
        let same = hash == bits;
        assert!(
            same || ["auto", "nccl"].contains(&exchange.as_str()),
            "{exchange}: other bits than the host's"
        );
        assert!((loss - host).abs() <= 1e-4 * host, "{exchange}: {loss}, and over the host {host}");
    }
}

#[test]
fn two_ranks_on_one_gpu_sum_over_the_host_and_the_run_says_why() {
    let mut job = command(&words(&train("2", &[])));
    job.env("ALLFOLD_STANDIN", "1");
    let ended = ended(job.output().unwrap());
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    assert!(ended.text.contains("gradients summed by the host: ranks 0 and 1 share a GPU"), "{}", ended.text);
}

/// D15: what `device` takes where the ranks share a GPU, and where they are on two hosts.
#[test]
fn processes_that_share_a_gpu_sum_by_device_copies_and_those_of_two_hosts_over_the_host() {
    let device = ["--set", "exchange=\"device\""];
    let mut job = command(&words(&train("2", &device)));
    let one = ended(job.env("ALLFOLD_STANDIN", "1").output().unwrap());
    assert_eq!(one.code, Some(0), "{}", one.errors);
    assert!(one.text.contains("gradients summed by device copies between processes"), "{}", one.text);
    let (rendezvous, config) = (format!("127.0.0.1:{}", free_port()), config("digits-mlp.toml"));
    let node = |node: &'static str| {
        let launch = ["launch", "-n", "1", "--nnodes", "2", "--node-rank", node, "--rdzv", &rendezvous, "--"];
        let train = ["train", "--config", &config, "--device", "cuda"];
        let mut command = command(&[&launch[..], &train, &SHORT, &device].concat());
        command.env("NCCL_HOSTID", format!("node{node}"));
        command
    };
    let nodes = together(vec![node("0"), node("1")]);
    assert!(nodes.iter().all(|node| node.code == Some(0)), "{}{}", nodes[0].errors, nodes[1].errors);
    let why = "gradients summed by the host: ranks 0 and 1 are on different hosts";
    assert!(nodes[0].text.contains(why), "{}", nodes[0].text);
}

#[test]
fn a_set_with_too_few_samples_for_the_batch_is_told_in_the_heading() {
    let config = config("digits-mlp.toml");
    let words =
        ["train", "--config", &config, "--ranks", "4", "--set", "training.batch=1000", "--steps", "1"];
    let text = said(&words);
    let first = text.lines().next().unwrap();
    assert!(
        first.contains("each (1000 in the configuration, for which there are too few samples)"),
        "{text}"
    );
}

/// The process ids of the ranks of a job, by rank: of the processes whose environment names the launcher's rendezvous.
fn ranks_of(launcher: &Child) -> Vec<(u32, i32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(status) = std::fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
        let parent =
            status.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        let Ok(variables) = std::fs::read(format!("/proc/{id}/environ")) else { continue };
        let rank = variables
            .split(|byte| *byte == 0)
            .find_map(|one| std::str::from_utf8(one).ok()?.strip_prefix("RANK=")?.parse::<u32>().ok());
        if let (Some(rank), true) = (rank, parent == Some(launcher.id())) {
            found.push((rank, id));
        }
    }
    found.sort_unstable();
    found
}

/// Starts a long run of three ranks, waits for its first step, sends `signal` to rank 1, and returns how the job ends.
fn struck(signal: &str) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("records").display().to_string();
    let log = folder.path().join("logs").display().to_string();
    let config = config("digits-mlp.toml");
    let words =
        ["launch", "-n", "3", "--grace", "1", "--log-dir", &log, "--tee", "--", "train", "--config", &config];
    let run = ["--device", "cuda", "--set", "training.epochs=1000000", "--json", &json];
    let mut job = command(&[&words[..], &run].concat());
    job.env("ALLFOLD_TIMEOUT", "4").env("ALLFOLD_LOG", "info").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = job.spawn().unwrap();
    // Rank 0 writes a record of its progress after its first steps.
    while std::fs::metadata(&json).map_or(0, |file| file.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the run has ended before its first record");
        std::thread::yield_now();
    }
    let ranks = ranks_of(&child);
    assert_eq!(ranks.len(), 3, "{ranks:?}");
    let sent = Command::new("kill").args([signal, &ranks[1].1.to_string()]).status().unwrap();
    assert!(sent.success());
    let mut errors = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        errors += &(line.unwrap() + "\n");
    }
    let code = child.wait().unwrap().code();
    Ended { code, text: String::new(), errors }
}

#[test]
fn a_rank_that_is_killed_is_named() {
    let Ended { code, errors, .. } = struck("-KILL");
    assert_ne!(code, Some(0), "{errors}");
    assert!(errors.contains("rank 1"), "{errors}");
}

#[test]
fn a_rank_that_is_stopped_is_named_within_the_deadline() {
    let Ended { code, errors, .. } = struck("-STOP");
    assert_ne!(code, Some(0), "{errors}");
    let of_rank_0 = errors.lines().find(|line| line.contains("error:") && line.contains("rank 1"));
    assert!(of_rank_0.is_some(), "{errors}");
}
