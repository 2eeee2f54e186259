//! Whether a job hangs at all: a job under way has operations that some ranks have not entered yet, too.

use super::verdict::Hung;
use super::waits::Waits;
use crate::model::{DumpedJob, Fact, OpState};
use crate::retired::Stillness;

/// Whether the job hangs, and why that is known.
pub(super) fn hung(job: &DumpedJob, waits: &Waits) -> (Hung, String) {
    let open = || job.logs.values().flat_map(|log| &log.ops).filter(|op| op.is_open());
    let tells = |fact| matches!(fact, Fact::TimedOut | Fact::Died | Fact::Aborted | Fact::Unresponsive);
    let late = job.words.iter().find(|word| tells(word.fact));
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
    let Some(Stillness { waited, allowed, limit }) = Stillness::of(job, open()) else {
        return (
            Hung::Unknown,
            "the dumps do not say for how long ranks have waited; if the job moves no more:".into(),
        );
    };
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
