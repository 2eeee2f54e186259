//! The order of a rank's calls, which repeats in training: what is expected next, and calls that broke the order.
//!
//! ```text
//! earlier   .. a b c a b c a b c | eval | a b c a
//! now                                         a c       b was expected: after `c a`, nothing else ever followed
//! ```
//!
//! A program changes its order at times, to evaluate or to save: all ranks do so, or a collective of all ranks ends in it. A break that
//! one rank alone has is suspicious.

use crate::model::{DumpedJob, Log, MessageEnd, Op};
use crate::read::at_once;
use std::collections::{BTreeMap, BTreeSet};

/// The most operations that are compared to find what is expected.
const CONTEXT: usize = 16;
/// How far back in a log an operation is looked for.
const BACK: usize = 4096;
/// How many of a rank's latest operations may hold the one that broke the order.
const TAIL: usize = 24;

/// For ranks that alone broke the order of their calls: the operation that did, and the one that was expected instead.
pub(super) type Breaks = BTreeMap<u32, (usize, usize)>;

/// What followed the latest operations of a log before, at an earlier place.
struct Earlier {
    /// How many operations there are like the latest ones.
    run: usize,
    /// The operation that followed them.
    next: usize,
}

/// The earlier operation of a log whose like is expected after its first `at` operations: the latest of those that followed the longest
/// run of operations that is like the latest run. `None` if the log shows no repetition.
pub(super) fn expected(log: &Log, at: usize) -> Option<usize> {
    longest(&earlier(log, at), at).map(|earlier| earlier.next)
}

/// Whether a rank's operation is what its earlier ones let expect; `None` if they let nothing expect.
pub(super) fn is_expected(log: &Log, number: u32) -> Option<bool> {
    let all = earlier(log, number as usize);
    longest(&all, number as usize).map(|longest| followed(log, &all, longest.run, number as usize))
}

/// The places of a log before `at` that followed a run like the run before `at`; the latest first.
fn earlier(log: &Log, at: usize) -> Vec<Earlier> {
    let ops = &log.ops;
    let like = |next: usize| {
        let run = (1..=next.min(CONTEXT)).take_while(|back| ops[next - back].kind() == ops[at - back].kind());
        Earlier { run: run.count(), next }
    };
    (at.saturating_sub(BACK).max(1)..at).rev().map(like).filter(|earlier| earlier.run > 0).collect()
}

/// The latest of the places with the longest run.
fn longest(all: &[Earlier], at: usize) -> Option<&Earlier> {
    let best = all.iter().map(|earlier| earlier.run).max()?;
    // A single like operation says little, unless it is all that there can be.
    all.iter().find(|earlier| earlier.run == best && (best > 1 || (earlier.next == 1 && at > 2)))
}

/// Whether an operation like that at `at` ever followed a run that is at least half as long as the longest: a longer run may be longer
/// by chance, as by an evaluation at the right distance.
fn followed(log: &Log, all: &[Earlier], longest: usize, at: usize) -> bool {
    let kind = log.ops[at].kind();
    all.iter().any(|earlier| 2 * earlier.run >= longest && log.ops[earlier.next].kind() == kind)
}

/// The latest operations of a rank that its earlier ones did not let expect, each with the one that was expected instead.
fn breaks(job: &DumpedJob, log: &Log) -> Vec<(usize, usize)> {
    let ops = &log.ops;
    let found = (ops.len().saturating_sub(TAIL)..ops.len()).filter_map(|at| {
        let all = earlier(log, at);
        let Earlier { run, next } = *longest(&all, at)?;
        // A call that is new to the rank breaks no order. One of all ranks that has ended was made by all of them.
        let known = ops[..at].iter().any(|op| op.kind() == ops[at].kind());
        let members = job.groups.get(ops[at].group as usize).map_or(0, |group| group.members.len());
        let agreed = ops[at].message.is_none() && !ops[at].is_open() && members as u32 == job.size;
        // The like run has to be as long as what repeats, or to reach back to the program's start.
        let enough = (run > 2 && run >= CONTEXT.min(at - next))
            || (log.whole && all.iter().any(|earlier| earlier.run == run && earlier.next == run));
        (known && enough && !agreed && !followed(log, &all, run, at)).then_some((at, next))
    });
    found.collect()
}

/// The ranks that alone broke the order of their calls, each with its first such call.
pub(super) fn lone_breaks(job: &DumpedJob) -> Breaks {
    let like = |op: &Op| {
        let name = job.groups.get(op.group as usize).map_or("", |group| &*group.name);
        (name, op.call, op.place, op.message.map(|message| matches!(message, MessageEnd::SendTo(_))))
    };
    let logs: Vec<(&u32, &Log)> = job.logs.iter().collect();
    let all = at_once(&logs, |(rank, log)| (**rank, *log, breaks(job, log)));
    let mut makers: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
    for (rank, log, found) in &all {
        for (at, wanted) in found {
            makers.entry((like(&log.ops[*at]), like(&log.ops[*wanted]))).or_default().insert(*rank);
        }
    }
    let alone = |log: &Log, (at, wanted): &(usize, usize)| {
        makers.get(&(like(&log.ops[*at]), like(&log.ops[*wanted]))).is_some_and(|ranks| ranks.len() == 1)
    };
    let first = |(rank, log, found): (u32, &Log, Vec<(usize, usize)>)| {
        Some((rank, *found.iter().find(|one| alone(log, one))?))
    };
    all.into_iter().filter_map(first).collect()
}
