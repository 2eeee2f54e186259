//! A verdict in lines.

use crate::judge::{Hung, Verdict, ranks, recorded};
use crate::model::{DumpedJob, Log};
use crate::slow::straggler;

/// The most ranks that have a line of their own.
const RANKS: usize = 64;
/// The most causes that are printed.
const CAUSES: usize = 3;

/// A verdict in lines: the likeliest cause, its evidence, other causes, what cannot be known, and the last operation of each rank.
pub fn lines(job: &DumpedJob, verdict: &Verdict) -> Vec<String> {
    let mut lines = Vec::new();
    match (verdict.hung, verdict.causes.split_first()) {
        (Hung::No, _) | (_, None) => lines.push(verdict.why.clone()),
        (hung, Some((first, others))) => {
            if hung == Hung::Unknown {
                lines.push(verdict.why.clone());
            }
            if !verdict.decided {
                lines.push("undecided, of these causes:".into());
            }
            lines.push(first.said.clone());
            lines.extend(first.evidence.iter().map(|why| format!("  for it: {why}")));
            lines.extend(first.against.iter().map(|why| format!("  against it: {why}")));
            let or = if verdict.decided { "or, less likely" } else { "or" };
            lines.extend(others.iter().take(CAUSES - 1).map(|other| format!("{or}: {}", other.said)));
        }
    }
    lines.extend(verdict.unknown.iter().map(|what| format!("not known: {what}")));
    let unseen: Vec<u32> = job.unseen().collect();
    if !unseen.is_empty() {
        let they = if unseen.len() == 1 {
            "it was killed, stopped or busy, had ended before, or was"
        } else {
            "they were killed, stopped or busy, had ended before, or were"
        };
        lines.push(format!("no record of {}: {they} not told of the failure", ranks(&unseen)));
    }
    let (quoted, recorded) = (lines.join("\n"), recorded(job));
    for rank in &unseen {
        let said = recorded.get(rank).into_iter().flatten();
        let recorded = said.clone().find(|(_, error)| !quoted.contains(error));
        lines.extend(recorded.map(|(by, error)| format!("  rank {by} recorded of rank {rank}: {error}")));
    }
    if let Some(straggler) = straggler(job) {
        let earlier = if verdict.causes.is_empty() {
            ""
        } else {
            "earlier, in the operations that ended well on all ranks, "
        };
        lines.push(format!("{earlier}{}", straggler.said));
    }
    lines.extend(job.logs.iter().take(RANKS).map(|(rank, log)| line(job, *rank, log)));
    lines
}

/// One rank's record in a line: its last operation, why the record was written, by which process and when.
fn line(job: &DumpedJob, rank: u32, log: &Log) -> String {
    let last = log.ops.last().map_or_else(
        || "nothing".into(),
        |last| {
            format!(
                "operation {}, {}: {}",
                last.sequence,
                job.told(last),
                format!("{:?}", last.state).to_lowercase()
            )
        },
    );
    let step = log.step.map_or_else(String::new, |step| format!(" in training step {step}"));
    let why =
        if log.reason.is_empty() { String::new() } else { format!("; written because: {}", log.reason) };
    let writer = if log.writer.is_empty() { String::new() } else { format!(" ({})", log.writer) };
    format!("  rank {rank}: last {last}{step}{why}{writer}")
}
