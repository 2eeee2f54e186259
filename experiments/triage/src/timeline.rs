//! The last operations of ranks around a hang, on one clock.
//!
//! ```text
//! rank 2, dp       | all_reduce 40 |  in no operation ........
//! rank 0 +6, dp    | all_reduce 40 | all_reduce 41, waits ....
//! ```
//!
//! Ranks that got equally far are one lane. The clocks of hosts may differ by hours: each rank's times count from an operation that
//! ended on it and on the first rank drawn.

use crate::judge::Verdict;
use crate::model::{DumpedJob, Log, Op, OpState};
use std::collections::{BTreeMap, BTreeSet};

/// The most ranks that are drawn.
const RANKS: usize = 12;
/// How many of the last operations of a rank are drawn, besides the first of each group that has not ended.
const LAST: usize = 16;

/// A part of a lane.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneSpan {
    /// The rank, how many are alike, and the group.
    pub lane: String,
    /// What the rank did: `ended`, `waits`, `called, not begun`, `failed`, `in no operation` or `no dump`.
    pub kind: &'static str,
    /// The operation.
    pub name: String,
    /// When it began, in milliseconds.
    pub start: f64,
    /// When it ended; the end of the axis if it did not.
    pub end: f64,
}

/// The lanes of the ranks that the first cause names, and of one rank of each class of ranks that got equally far.
pub fn timeline(job: &DumpedJob, verdict: &Verdict) -> Vec<LaneSpan> {
    let blamed: Vec<u32> = verdict.causes.first().map_or(Vec::new(), |cause| cause.ranks.clone());
    let blamed = &blamed[..blamed.len().min(RANKS / 2)];
    let mut classes: BTreeMap<BTreeMap<&str, (u64, OpState)>, Vec<u32>> = BTreeMap::new();
    for (rank, log) in job.logs.iter().filter(|(rank, _)| !blamed.contains(rank)) {
        let far = log.ops.iter().map(|op| (group(job, op), (op.sequence, op.state))).collect();
        classes.entry(far).or_default().push(*rank);
    }
    let mut classes: Vec<Vec<u32>> = classes.into_values().collect();
    classes.sort_by_key(|class| (std::cmp::Reverse(class.len()), class[0]));
    classes.truncate(RANKS - blamed.len());
    let shown: Vec<(u32, usize)> = blamed
        .iter()
        .map(|rank| (*rank, 1))
        .chain(classes.iter().map(|class| (class[0], class.len())))
        .collect();
    let first = shown.iter().find_map(|(rank, _)| job.logs.get(rank));
    let mut lanes = Vec::new();
    for (rank, count) in &shown {
        let who = match count - 1 {
            0 => format!("rank {rank}"),
            more => format!("rank {rank} +{more}"),
        };
        match (job.logs.get(rank), first) {
            (Some(log), Some(first)) => lanes.extend(of_rank(job, &who, log, apart(log, first))),
            _ => lanes.push((who, "no dump", String::new(), i64::MIN, 0)),
        }
    }
    scaled(lanes)
}

/// Lane, kind, name, start and end in nanoseconds; an open end is 0.
type Raw = (String, &'static str, String, i64, i64);

/// By how much the clock of a rank is ahead of the first rank's.
fn apart(log: &Log, first: &Log) -> i64 {
    let key = |op: &Op| (op.group, op.sequence, op.call);
    let ended = |op: &&Op| op.message.is_none() && op.ended > 0;
    let known: BTreeMap<_, i64> = first.ops.iter().filter(ended).map(|op| (key(op), op.ended)).collect();
    let shared = log.ops.iter().rev().filter(ended).find_map(|op| Some(op.ended - known.get(&key(op))?));
    shared.unwrap_or_else(|| if log.written > 0 { log.written - first.written } else { 0 })
}

/// The name of an operation's group: `dp`, whichever of the job's groups of that name it is.
fn group<'a>(job: &'a DumpedJob, op: &Op) -> &'a str {
    job.groups.get(op.group as usize).map_or("", |group| &group.name)
}

fn of_rank(job: &DumpedJob, who: &str, log: &Log, ahead: i64) -> Vec<Raw> {
    let (mut drawn, mut waits) = (Vec::new(), BTreeSet::new());
    for (at, op) in log.ops.iter().enumerate() {
        // What was called behind an operation that has not ended waits for that one.
        let shown = if op.is_open() { waits.insert(op.group) } else { at + LAST >= log.ops.len() };
        if !shown {
            continue;
        }
        let kind = match op.state {
            OpState::Done => "ended",
            OpState::Started => "waits",
            OpState::Called => "called, not begun",
            OpState::Failed => "failed",
        };
        // Gloo's recorder does not say when an operation ended: at the latest when the next one was called.
        let end = match op.ended {
            0 if !op.is_open() => log.ops.get(at + 1).map_or(0, |next| next.called).max(op.called + 1),
            ended => ended,
        };
        let lane = [who, group(job, op)].join(", ").trim_end_matches(", ").to_string();
        let name = format!("operation {}, {}", op.sequence, job.told(op));
        drawn.push((lane, kind, name, op.called - ahead, if end > 0 { end - ahead } else { 0 }));
    }
    if log.ops.iter().all(|op| !op.is_open()) {
        let (lane, after) = drawn
            .last()
            .map_or((who.into(), String::new()), |last| (last.0.clone(), format!("after {}", last.2)));
        let last = log.last_event() - ahead;
        drawn.push((lane, "in no operation", after, if last > 0 { last } else { i64::MIN }, 0));
    }
    drawn.sort_by(|a, b| (&a.0, a.3).cmp(&(&b.0, b.3)));
    drawn
}

/// The parts in milliseconds from the first one's start. What has no end reaches a fifth beyond the last event.
fn scaled(lanes: Vec<Raw>) -> Vec<LaneSpan> {
    let begins = || lanes.iter().map(|lane| lane.3).filter(|start| *start > i64::MIN);
    let zero = begins().min().unwrap_or(0);
    let last = begins().chain(lanes.iter().map(|lane| lane.4)).max().unwrap_or(0).max(zero + 1_000_000);
    let ms = |time: i64| time.saturating_sub(zero).max(0) as f64 / 1e6;
    let open = ms(last) * 1.2;
    let of = |(lane, kind, name, start, end): Raw| {
        let (start, end) = (ms(start), if end > 0 { ms(end) } else { open });
        LaneSpan { lane, kind, name, start, end: end.max(start) }
    };
    lanes.into_iter().map(of).collect()
}
