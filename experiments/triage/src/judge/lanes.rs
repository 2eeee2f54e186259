//! The operations of a job by group: who took part in which.

use crate::model::{DumpedJob, Log, Op};
use std::collections::BTreeMap;

/// The collectives of each group, by rank and number.
pub(super) struct Lanes<'a> {
    pub(super) job: &'a DumpedJob,
    /// For each group: for each rank its collectives, by number in the rank's log, in their order.
    lanes: Vec<BTreeMap<u32, Vec<u32>>>,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(job: &'a DumpedJob) -> Lanes<'a> {
        let mut lanes: Vec<BTreeMap<u32, Vec<u32>>> = vec![BTreeMap::new(); job.groups.len()];
        for (rank, log) in &job.logs {
            for (number, op) in (0..).zip(&log.ops).filter(|(_, op)| op.message.is_none()) {
                let lane: &mut Vec<u32> = lanes[op.group as usize].entry(*rank).or_default();
                // Of the operations that one call coalesces, the first stands for the call.
                if lane.last().is_none_or(|last| log.ops[*last as usize].sequence < op.sequence) {
                    lane.push(number);
                }
            }
        }
        Lanes { job, lanes }
    }

    /// The groups by number, each with the ranks that took part in it.
    pub(super) fn groups(&self) -> impl Iterator<Item = (u32, &BTreeMap<u32, Vec<u32>>)> {
        (0..).zip(&self.lanes)
    }

    /// A rank's part in an operation, by number in the rank's log.
    pub(super) fn part(&self, group: u32, rank: u32, sequence: u64) -> Option<u32> {
        let (log, lane) = (self.job.logs.get(&rank)?, self.lanes[group as usize].get(&rank)?);
        let at = lane.partition_point(|number| log.ops[*number as usize].sequence < sequence);
        lane.get(at).copied().filter(|number| log.ops[*number as usize].sequence == sequence)
    }

    /// A rank's operation by number in its log.
    pub(super) fn op(&self, rank: u32, number: u32) -> Option<&'a Op> {
        self.job.logs.get(&rank)?.ops.get(number as usize)
    }

    /// The last operation of the group that a rank entered.
    pub(super) fn last(&self, group: u32, rank: u32) -> Option<u64> {
        let last = *self.lanes[group as usize].get(&rank)?.last()?;
        Some(self.op(rank, last)?.sequence)
    }
}

/// The most operations that are compared to find what is expected.
const CONTEXT: usize = 16;
/// How far back in a log an operation is looked for.
const BACK: usize = 4096;

/// How many of a rank's latest operations may hold the one that broke the pattern.
const TAIL: usize = 64;

/// The earlier operation of a log whose like is expected after its first `at` operations: the one that followed the longest run of
/// operations that is like the latest run. `None` if the log shows no repetition.
pub(super) fn expected(log: &Log, at: usize) -> Option<usize> {
    after_run(log, at, 2)
}

/// As [`expected`], after a run of at least so many operations.
fn after_run(log: &Log, at: usize, least: usize) -> Option<usize> {
    let ops = &log.ops;
    let like = |from: usize| {
        let pairs =
            (1..=from.min(CONTEXT)).take_while(|back| ops[from - back].kind() == ops[at - back].kind());
        pairs.count()
    };
    let from = at.saturating_sub(BACK).max(1);
    let best = (from..at).rev().map(|from| (like(from), from)).max_by_key(|(length, from)| (*length, *from));
    // A single like operation says little, unless it is all that there can be.
    best.filter(|(length, from)| *length >= least || (*length == 1 && *from == 1 && at > 2))
        .map(|(_, from)| from)
}

/// Whether a rank's operation is what its earlier ones let expect; `None` if they let nothing expect.
pub(super) fn is_expected(log: &Log, number: u32) -> Option<bool> {
    let expected = expected(log, number as usize)?;
    Some(log.ops[expected].kind() == log.ops[number as usize].kind())
}

/// The first of a rank's latest operations that broke the pattern of those before, and the one that was expected instead.
pub(super) fn broke(log: &Log) -> Option<(usize, usize)> {
    let mut tail = log.ops.len().saturating_sub(TAIL)..log.ops.len();
    tail.find_map(|at| {
        let wanted = after_run(log, at, 3)?;
        (log.ops[at].kind() != log.ops[wanted].kind()).then_some((at, wanted))
    })
}
