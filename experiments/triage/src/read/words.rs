//! Words of logs: what a launcher, PyTorch's watchdog, NCCL, Slurm or Kubernetes say of ranks.

use crate::model::{DumpedJob, Fact, Word};

/// A phrase of a line, and what it says. The first one that a line has counts.
const PHRASES: [(&str, Fact); 16] = [
    ("exitcode", Fact::Died),
    ("exit code", Fact::Died),
    ("Signal ", Fact::Died),
    ("OOMKilled", Fact::Died),
    ("oom-kill", Fact::Died),
    ("Out Of Memory", Fact::Died),
    ("out of memory", Fact::Died),
    ("Segmentation fault", Fact::Died),
    ("NODE FAIL", Fact::Unresponsive),
    ("NodeLost", Fact::Unresponsive),
    ("node is not ready", Fact::Unresponsive),
    ("Watchdog caught collective operation timeout", Fact::TimedOut),
    ("ncclRemoteError", Fact::Network),
    ("ncclSystemError", Fact::Network),
    ("NET/IB", Fact::Network),
    ("Connection reset by peer", Fact::Network),
];

/// The most lines that are kept of one file.
const LINES: usize = 64;

/// Adds what a file says; returns whether it is a text at all.
pub(super) fn add(name: &str, text: &str, job: &mut DumpedJob) -> bool {
    if text.is_empty() || text.contains('\0') {
        return false;
    }
    let known = [".log", ".err", ".out", ".txt", ".json"].iter().any(|ending| name.ends_with(ending));
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text)
        && (value.get("communicators").is_some() || value.get("message").is_some())
    {
        return of_json(name, &value, job);
    }
    let mut found = false;
    let mut last_rank = None;
    let mut count = 0;
    for line in text.lines() {
        let rank = rank_of(line);
        // torchrun's report names the rank in the line before the exit code.
        last_rank = rank.or(last_rank);
        let Some((_, fact)) = PHRASES.iter().find(|(phrase, _)| line.contains(phrase)) else { continue };
        let healthy = line.contains("exitcode") && exit_code(line) == Some(0);
        if healthy || count == LINES {
            continue;
        }
        let own = super::rank_in(name.split('.').next().unwrap_or(name));
        let rank = rank.or(if line.contains("exitcode") { last_rank } else { None }).or(own);
        (found, count) = (true, count + 1);
        job.words.push(Word { rank, fact: *fact, said: line.trim().chars().take(200).collect() });
    }
    found || known
}

/// The number after `exitcode` in a line.
fn exit_code(line: &str) -> Option<i64> {
    let after = line.split_once("exitcode")?.1.trim_start_matches([' ', ':', '=']);
    let end = after.find(|c: char| !(c.is_ascii_digit() || c == '-')).unwrap_or(after.len());
    after[..end].parse().ok()
}

/// The rank that a line names: `[rank3]:`, `Rank 3]`, `rank      : 3 (local_rank: 3)`.
fn rank_of(line: &str) -> Option<u32> {
    let lower = line.to_ascii_lowercase();
    let mut rest = &lower[..];
    while let Some((before, after)) = rest.split_once("rank") {
        let digits = after.trim_start_matches([' ', ':', '=']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        if end > 0 && !before.ends_with("local_") && !before.ends_with("local ") {
            return digits[..end].parse().ok();
        }
        rest = after;
    }
    None
}

/// The report of `ncclras -f json`, or torchrun's `error.json`.
fn of_json(name: &str, value: &serde_json::Value, job: &mut DumpedJob) -> bool {
    if let Some(message) = value.get("message") {
        let said = message
            .get("message")
            .unwrap_or(message)
            .to_string()
            .trim_matches('"')
            .chars()
            .take(200)
            .collect();
        job.words.push(Word {
            rank: super::rank_in(name.split('.').next().unwrap_or(name)),
            fact: Fact::Died,
            said,
        });
        return true;
    }
    let list = |value: &serde_json::Value, key: &str| {
        value.get(key).and_then(|list| list.as_array()).cloned().unwrap_or_default()
    };
    let communicators = list(value, "communicators");
    // Ranks are numbered in each communicator: those of the largest one are the job's.
    let size = |of: &serde_json::Value| of.get("size").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let Some(world) = communicators.iter().max_by_key(|of| size(of)) else { return true };
    for missing in list(world, "missing_ranks") {
        let rank =
            missing.get("rank").and_then(serde_json::Value::as_u64).and_then(|rank| u32::try_from(rank).ok());
        let dead = missing.pointer("/status/considered_dead").is_some_and(|dead| *dead == true || *dead == 1);
        let fact = if dead { Fact::Died } else { Fact::Unresponsive };
        let host = missing.get("host").and_then(|host| host.as_str()).unwrap_or("?");
        let said = format!(
            "NCCL's RAS {} it, on host {host}",
            if dead { "considers it dead" } else { "gets no answer from" }
        );
        job.words.push(Word { rank, fact, said: said.replace("dead it", "dead") });
        if let Some(rank) = rank {
            job.hosts.insert(rank, host.into());
        }
    }
    for rank in list(world, "ranks") {
        let number =
            rank.get("rank").and_then(serde_json::Value::as_u64).and_then(|rank| u32::try_from(rank).ok());
        if let (Some(number), Some(host)) = (number, rank.get("host").and_then(|host| host.as_str())) {
            job.hosts.insert(number, host.into());
        }
    }
    job.size = job.size.max(u32::try_from(size(world)).unwrap_or(0).min(allfold_base::Rank::MOST));
    true
}
