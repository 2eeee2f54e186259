//! Operations that failed, and that Gloo's recorder took for ended.
//!
//! Gloo's recorder retires an operation when it ends, also when it times out or loses a connection, and says nothing else. Such an
//! operation is the last of its rank, and it did not end well if a rank of its group never entered it, entered it with another call or
//! after the time-out, or may not have entered it, as there is no dump of it. Ranks that still run have such operations, too: only those
//! of a job that stands still count.

use crate::model::{DumpedJob, Log, Op, OpCall, OpState};
use std::collections::BTreeMap;

/// How many times longer than ever before ranks have to wait.
const LONGER: i64 = 3;
/// Nanoseconds that are always allowed: writing a dump takes seconds on a busy host.
const ALWAYS: i64 = 5_000_000_000;
/// The time-out of PyTorch in nanoseconds, where dumps have none: 10 minutes.
const LIMIT: i64 = 600 * 1_000_000_000;

/// For how long no operation has begun or ended on any rank, in nanoseconds.
pub(crate) struct Stillness {
    pub(crate) waited: i64,
    /// For how long that may be.
    pub(crate) allowed: i64,
    /// The time-out.
    pub(crate) limit: i64,
}

impl Stillness {
    /// For how long the ranks of a job have waited, by the time-outs of these operations; `None` if the dumps do not say.
    pub(crate) fn of<'a>(job: &DumpedJob, waiting: impl Iterator<Item = &'a Op>) -> Option<Stillness> {
        let timed = || job.logs.values().filter(|log| log.written > 0 && !log.ops.is_empty());
        let waited = timed().map(|log| log.written - log.last_event()).min().filter(|waited| *waited >= 0)?;
        let limits = waiting.map(|op| i64::from(op.limit_ms) * 1_000_000).filter(|limit| *limit > 0);
        let limit = limits.min().unwrap_or(LIMIT);
        // Ranks that have hardly begun may compile or load: they have half of the time-out.
        let allowed = timed().filter_map(longest_gap).max();
        let allowed = allowed.map_or(limit / 2, |gap| (LONGER * gap + ALWAYS).min(limit));
        Some(Stillness { waited, allowed, limit })
    }
}

/// The longest time between two calls of a rank; `None` if it has made fewer than four.
fn longest_gap(log: &Log) -> Option<i64> {
    let gaps = log.ops.windows(2).map(|pair| pair[1].called - pair[0].called);
    if log.ops.len() < 4 { None } else { gaps.max() }
}

/// Marks as failed what did not end well, of a job that stands still.
pub(crate) fn reopen(job: &mut DumpedJob) {
    let ended = |log: &&Log| log.retires_failed && log.ops.last().is_some_and(|op| !op.is_open());
    if !job.logs.values().any(|log| ended(&log)) {
        return;
    }
    let last = job.logs.values().filter_map(|log| log.ops.last());
    if Stillness::of(job, last).is_none_or(|still| still.waited <= still.allowed) {
        return;
    }
    // The last collective of each rank in each group.
    let mut lasts: BTreeMap<(u32, u32), &Op> = BTreeMap::new();
    for (rank, log) in &job.logs {
        for op in log.ops.iter().filter(|op| op.message.is_none()) {
            lasts.insert((op.group, *rank), op);
        }
    }
    let failed = |(rank, log): (&u32, &Log)| {
        let op = Some(log).filter(ended)?.ops.last().filter(|op| op.message.is_none())?;
        did_not_end_well(job, &lasts, op).then_some(*rank)
    };
    let failed: Vec<u32> = job.logs.iter().filter_map(failed).collect();
    for rank in failed {
        if let Some(op) = job.logs.get_mut(&rank).and_then(|log| log.ops.last_mut()) {
            op.state = OpState::Failed;
        }
    }
}

/// Whether a rank's last operation, which was retired, cannot have ended well, or may not have.
fn did_not_end_well(job: &DumpedJob, lasts: &BTreeMap<(u32, u32), &Op>, op: &Op) -> bool {
    let members = &job.groups[op.group as usize].members;
    let of = |member: &u32| lasts.get(&(op.group, *member)).copied();
    let unseen = members.iter().any(|member| !job.logs.contains_key(member));
    let others: Vec<&Op> = members.iter().filter_map(of).collect();
    if others.iter().any(|other| other.sequence > op.sequence) {
        return false;
    }
    let entered: Vec<&&Op> = others.iter().filter(|other| other.sequence == op.sequence).collect();
    let lacks = members.iter().any(|member| {
        job.logs.contains_key(member) && of(member).is_none_or(|other| other.sequence < op.sequence)
    });
    let together = job.calls.get(op.call).is_some_and(OpCall::needs_all_parts);
    let differ = entered.iter().any(|other| other.call != op.call);
    let called = || entered.iter().map(|other| other.called);
    let apart = called().max().unwrap_or(0) - called().min().unwrap_or(0);
    let late = op.limit_ms > 0 && apart >= i64::from(op.limit_ms) * 900_000;
    unseen || differ || late || (lacks && together)
}
