//! Words of logs: what a launcher, PyTorch's watchdog, NCCL, Slurm or Kubernetes say of ranks.

use super::ras;
use crate::model::{DumpedJob, Fact, Word};

/// A phrase of a line, and what it says. The first one that a line has counts.
const PHRASES: [(&str, Fact); 24] = [
    ("oom_kill event", Fact::Died),
    ("OUT_OF_MEMORY", Fact::Died),
    ("NODE_FAIL", Fact::Unresponsive),
    ("NODE FAILURE", Fact::Unresponsive),
    ("Evicted", Fact::Unresponsive),
    ("exitcode", Fact::Died),
    ("exit code", Fact::Died),
    ("Signal ", Fact::Died),
    ("PEER_DEAD", Fact::Died),
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
    ("NET/IB : Got completion", Fact::Network),
    ("NET/IB: Got completion", Fact::Network),
    ("Got async event", Fact::Network),
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
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text) {
        if let Some(message) = value.get("message") {
            of_error(name, message, job);
            return true;
        }
        if ras::of_json(&value, job) {
            return true;
        }
    }
    if ras::of_events(text, job) || ras::of_text(text, job) {
        return true;
    }
    let mut found = false;
    let mut last_rank = None;
    let mut count = 0;
    for line in text.lines() {
        let rank = rank_of(line);
        // torchrun's report names the rank in the line before the exit code.
        last_rank = rank.or(last_rank);
        let phrase = PHRASES.iter().find(|(phrase, _)| line.contains(phrase)).map(|(_, fact)| *fact);
        let killed = || (line.contains(": Killed") && line.starts_with("srun: ")).then_some(Fact::Died);
        let Some(fact) = phrase.or_else(killed) else { continue };
        let code = exit_code(line);
        let healthy = code == Some(0);
        let aborted = fact == Fact::Died
            && (matches!(code, Some(-6 | -15)) || line.contains("Signal 6 ") || line.contains("Signal 15 "));
        let fact = if aborted { Fact::Aborted } else { fact };
        if healthy || count == LINES {
            continue;
        }
        let own = super::rank_in(name.split('.').next().unwrap_or(name));
        let rank = rank.or(if line.contains("exitcode") { last_rank } else { None }).or(own);
        (found, count) = (true, count + 1);
        let said: String = line.trim().chars().take(200).collect();
        let tasks = tasks(line);
        let ranks = if tasks.is_empty() { vec![rank] } else { tasks.into_iter().map(Some).collect() };
        job.words.extend(ranks.into_iter().map(|rank| Word { rank, fact, said: said.clone() }));
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

/// torchrun's `error.json`.
fn of_error(name: &str, message: &serde_json::Value, job: &mut DumpedJob) {
    let text = message.get("message").unwrap_or(message).to_string();
    let said = text.trim_matches('"').chars().take(200).collect();
    let rank = super::rank_in(name.split('.').next().unwrap_or(name));
    job.words.push(Word { rank, fact: Fact::Died, said });
}

/// The tasks that a line of Slurm's `srun` names: `srun: error: node7: tasks 8-15: Killed`. They are the ranks.
fn tasks(line: &str) -> Vec<u32> {
    let after = line.strip_prefix("srun: error: ").and_then(|line| line.split_once(": task"));
    let Some((list, _)) = after.and_then(|(_, after)| after.split_once(": ")) else { return Vec::new() };
    let range = |item: &str| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        Some(first..=last.min(first.saturating_add(LINES as u32)))
    };
    list.trim_start_matches(['s', ' ']).split(',').filter_map(range).flatten().take(LINES).collect()
}
