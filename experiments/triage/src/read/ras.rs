//! NCCL's RAS: the reports of `ncclras` as JSON and as text, and the events of its monitor mode.
//!
//! Source: NCCL 2.31, `docs/userguide/source/troubleshooting/ras.rst`, and `src/ras/client_support.cc`. Ranks are numbered in each
//! communicator: those of the largest one are the job's. A process is named by its host and number.

use crate::model::{DumpedJob, Fact, Word};
use allfold_base::Rank;
use serde_json::Value;
use std::collections::BTreeMap;

/// The most ranks that are read of a text.
const RANKS: usize = 4096;

/// A report as JSON; `false` if the value is none.
pub(super) fn of_json(report: &Value, job: &mut DumpedJob) -> bool {
    let list = |value: &Value, key: &str| {
        value.get(key).and_then(|list| list.as_array()).cloned().unwrap_or_default()
    };
    if report.get("communicators").is_none() {
        return false;
    }
    let communicators = list(report, "communicators");
    let size = |of: &Value| of.get("size").and_then(Value::as_u64).unwrap_or(0);
    let Some(world) = communicators.iter().max_by_key(|of| size(of)) else { return true };
    for missing in list(world, "missing_ranks") {
        let Some((rank, host)) = known(&missing, job) else { continue };
        let dead = missing.pointer("/status/considered_dead").is_some_and(|dead| *dead == true || *dead == 1);
        let (fact, does) = match dead {
            true => (Fact::Died, "considers it dead"),
            false => (Fact::Unresponsive, "gets no answer from it"),
        };
        job.words.push(Word { rank: Some(rank), fact, said: format!("NCCL's RAS {does}, on host {host}") });
    }
    let counted = list(world, "ranks").into_iter().filter_map(|rank| {
        let counts = rank.get("collective_counts").and_then(Value::as_object);
        let sum = counts.map(|counts| counts.values().filter_map(Value::as_u64).fold(0, u64::saturating_add));
        Some((known(&rank, job)?.0, sum?))
    });
    let counted: BTreeMap<u32, u64> = counted.collect();
    behind(&counted, job);
    job.size = job.size.max(u32::try_from(size(world)).unwrap_or(0).min(Rank::MOST));
    true
}

/// The number and the host of a rank of a report, which the job is told.
fn known(rank: &Value, job: &mut DumpedJob) -> Option<(u32, String)> {
    let number = u32::try_from(rank.get("rank")?.as_u64()?).ok().filter(|rank| *rank < Rank::MOST)?;
    let host = rank.get("host").and_then(Value::as_str).unwrap_or("?").to_string();
    job.hosts.insert(number, host.clone());
    if let Some(process) = rank.get("pid").and_then(Value::as_u64) {
        job.processes.insert((host.clone(), process), number);
    }
    Some((number, host))
}

/// Ranks that have launched fewer operations than most others. Counts differ in jobs under way, too.
fn behind(counted: &BTreeMap<u32, u64>, job: &mut DumpedJob) {
    let most = counted.values().copied().max().unwrap_or(0);
    let late: Vec<_> = counted.iter().filter(|(_, count)| **count < most).collect();
    if 2 * late.len() < counted.len() {
        let said = |count: &u64| format!("NCCL's RAS counts {count} operations of it, and {most} of others");
        let word =
            |(rank, count): (&u32, &u64)| Word { rank: Some(*rank), fact: Fact::Behind, said: said(count) };
        job.words.extend(late.into_iter().map(word));
    }
}

/// Events of the monitor mode as JSON, one after another; `false` if the text is none.
pub(super) fn of_events(text: &str, job: &mut DumpedJob) -> bool {
    let mut found = false;
    for event in serde_json::Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok) {
        let text = |at: &str| event.pointer(at).and_then(Value::as_str).unwrap_or("?").to_string();
        if event.get("event").is_none() || event.get("group").is_none() {
            return found;
        }
        found = true;
        if text("/event") == "PEER_DEAD" {
            let process = event.pointer("/peer/pid").and_then(Value::as_u64).unwrap_or(0);
            let said = format!("PEER_DEAD: Process {process} on node {}", text("/peer/host"));
            job.words.push(Word { rank: None, fact: Fact::Died, said });
        }
    }
    found
}

/// A report as text; `false` if the text is none.
pub(super) fn of_text(text: &str, job: &mut DumpedJob) -> bool {
    if !(text.contains("Communicators...") && text.contains("Job summary")) {
        return false;
    }
    let (mut dead, mut counts, mut launched) = (false, BTreeMap::new(), None);
    for line in text.lines().map(str::trim).take(RANKS) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["DEAD"] => dead = true,
            [_, _, _, _, ranks, _, status, ..] if status.chars().all(|c| c.is_ascii_uppercase()) => {
                let ranks = ranks.rsplit('-').next().and_then(|ranks| ranks.parse::<u32>().ok());
                job.size = job.size.max(ranks.unwrap_or(0).min(Rank::MOST));
            }
            ["Process", ..] if dead => {
                job.words.push(Word { rank: None, fact: Fact::Died, said: line.into() })
            }
            ["The", "missing", _, ranks @ ..] => {
                let fact = if dead { Fact::Died } else { Fact::Unresponsive };
                let numbers = ranks.iter().filter_map(|rank| rank.trim_matches(',').parse::<u32>().ok());
                let said = format!(
                    "NCCL's RAS misses it{}",
                    if dead { ", and considers a process dead" } else { "" }
                );
                job.words.extend(numbers.map(|rank| Word { rank: Some(rank), fact, said: said.clone() }));
            }
            [ranks, "ranks" | "rank", "have" | "has", "launched", .., count] => {
                launched = count.parse::<u64>().ok();
                let ranks = ranks.parse::<u64>().unwrap_or(0);
                counts.extend(launched.map(|count| (count, ranks)));
            }
            ["Rank", rank, "--", .., host] => {
                let Some(rank) = rank.parse::<u32>().ok().filter(|rank| *rank < Rank::MOST) else { continue };
                job.hosts.insert(rank, (*host).into());
                let most = counts.keys().next_back().copied().unwrap_or(0);
                if let Some(count) = launched.filter(|count| *count < most) {
                    let said = format!("NCCL's RAS counts {count} operations of it, and {most} of others");
                    job.words.push(Word { rank: Some(rank), fact: Fact::Behind, said });
                }
            }
            _ => {}
        }
    }
    if let (Some((least, ranks)), Some((most, _))) = (counts.first_key_value(), counts.last_key_value())
        && least < most
        && !job.words.iter().any(|word| word.fact == Fact::Behind)
    {
        job.notes.push(format!(
            "NCCL's RAS: {ranks} ranks have launched up to operation {least}, and others up to {most}; the ranks that it lists are ahead, so who is behind is not told: `ncclras -v` or `-f json` tells"
        ));
    }
    true
}
