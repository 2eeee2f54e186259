//! Whether a job hangs at all: a job under way has operations that some ranks have not entered yet, too.

use super::verdict::Hung;
use super::waits::Waits;
use crate::model::{DumpedJob, Fact, Log, OpState};

/// How many times longer than ever before ranks have to wait.
const LONGER: i64 = 3;
/// Nanoseconds that are always allowed: writing a dump takes seconds on a busy host.
const ALWAYS: i64 = 5_000_000_000;
/// The time-out of PyTorch in nanoseconds, where dumps have none: 10 minutes.
const LIMIT: i64 = 600 * 1_000_000_000;

/// Whether the job hangs, and why that is known.
pub(super) fn hung(job: &DumpedJob, waits: &Waits) -> (Hung, String) {
    let open = || job.logs.values().flat_map(|log| &log.ops).filter(|op| op.is_open());
    let late =
        job.words.iter().find(|word| matches!(word.fact, Fact::TimedOut | Fact::Died | Fact::Unresponsive));
    if open().any(|op| op.state == OpState::Failed) {
        return (Hung::Yes, "operations failed or timed out".into());
    }
    if let Some(word) = late {
        return (Hung::Yes, format!("a log says: {}", word.said));
    }
    if job.logs.is_empty() {
        return (Hung::Unknown, "no dump tells whether the job hangs; if it does:".into());
    }
    if waits.ops.is_empty() {
        let count = job.logs.values().map(|log| log.ops.len()).sum::<usize>();
        return (
            Hung::No,
            format!("no divergence: all {count} operations ended well on every rank that recorded them"),
        );
    }
    if job.logs.values().all(|log| log.asked) {
        return (Hung::No, "the job was under way when it was asked for its records; ask again: if ranks wait in the same operation, it hangs".into());
    }
    let timed = job.logs.values().filter(|log| log.written > 0 && !log.ops.is_empty());
    let waited = timed.clone().map(|log| log.written - log.last_event()).min();
    let Some(waited) = waited.filter(|waited| *waited >= 0) else {
        return (
            Hung::Unknown,
            "the dumps do not say for how long ranks have waited; if the job moves no more:".into(),
        );
    };
    let limit =
        open().map(|op| i64::from(op.limit_ms) * 1_000_000).filter(|limit| *limit > 0).min().unwrap_or(LIMIT);
    let usual = timed.clone().filter_map(longest_gap).max();
    // Ranks that have hardly begun may compile or load: they have half of the time-out.
    let allowed = usual.map_or(limit / 2, |gap| (LONGER * gap + ALWAYS).min(limit));
    let seconds = |nanos: i64| nanos as f64 / 1e9;
    if waited > allowed && waited < limit / 2 {
        let why = format!(
            "no operation began or ended for {:.1} s, which is longer than before, and less than half of the time-out; if the job moves no more:",
            seconds(waited)
        );
        return (Hung::Unknown, why);
    }
    match waited > allowed {
        true => (Hung::Yes, format!("no operation began or ended for {:.1} s", seconds(waited))),
        false => (
            Hung::No,
            format!(
                "not hung: ranks waited for {:.1} s when the dumps were written, and may wait for {:.1} s",
                seconds(waited),
                seconds(allowed)
            ),
        ),
    }
}

/// The longest time between two calls of a rank; `None` if it has made fewer than four.
fn longest_gap(log: &Log) -> Option<i64> {
    let gaps = log.ops.windows(2).map(|pair| pair[1].called - pair[0].called);
    if log.ops.len() < 4 { None } else { gaps.max() }
}
