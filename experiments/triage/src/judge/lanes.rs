//! The operations of a job by group: who took part in which.

use crate::model::{DumpedJob, Log, Op};
use std::collections::BTreeMap;

/// The collectives of each group, by rank and number.
pub(crate) struct Lanes<'a> {
    pub(crate) job: &'a DumpedJob,
    /// For each group: for each rank its collectives, by number in the rank's log, in their order.
    lanes: Vec<BTreeMap<u32, Vec<u32>>>,
    /// The dumps by rank.
    logs: Vec<Option<&'a Log>>,
}

impl<'a> Lanes<'a> {
    pub(crate) fn new(job: &'a DumpedJob) -> Lanes<'a> {
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
        let last = job.logs.keys().next_back().map_or(0, |last| last + 1);
        let logs = (0..last).map(|rank| job.logs.get(&rank)).collect();
        Lanes { job, lanes, logs }
    }

    /// The groups by number, each with the ranks that took part in it.
    pub(super) fn groups(&self) -> impl Iterator<Item = (u32, &BTreeMap<u32, Vec<u32>>)> {
        (0..).zip(&self.lanes)
    }

    /// The operations of a group in their order: the number of each, and the ranks' parts by number in their logs.
    pub(crate) fn operations(&self, group: u32) -> impl Iterator<Item = (u64, Vec<(u32, u32)>)> {
        let lane = self.lanes[group as usize].iter();
        let mut rests: Vec<(u32, &[u32])> = lane.map(|(rank, numbers)| (*rank, &numbers[..])).collect();
        let sequence = |rank: u32, number: u32| self.op(rank, number).map(|op| op.sequence);
        std::iter::from_fn(move || {
            let first = |(rank, rest): &(u32, &[u32])| sequence(*rank, *rest.first()?);
            let next = rests.iter().filter_map(first).min()?;
            let mut parts = Vec::with_capacity(rests.len());
            for (rank, rest) in &mut rests {
                if let Some((number, after)) = rest.split_first()
                    && sequence(*rank, *number) == Some(next)
                {
                    parts.push((*rank, *number));
                    *rest = after;
                }
            }
            Some((next, parts))
        })
    }

    /// A rank's part in an operation, by number in the rank's log.
    pub(super) fn part(&self, group: u32, rank: u32, sequence: u64) -> Option<u32> {
        let (log, lane) = (self.log(rank)?, self.lanes[group as usize].get(&rank)?);
        let at = lane.partition_point(|number| log.ops[*number as usize].sequence < sequence);
        lane.get(at).copied().filter(|number| log.ops[*number as usize].sequence == sequence)
    }

    /// A rank's dump.
    pub(super) fn log(&self, rank: u32) -> Option<&'a Log> {
        *self.logs.get(rank as usize)?
    }

    /// A rank's operation by number in its log.
    pub(crate) fn op(&self, rank: u32, number: u32) -> Option<&'a Op> {
        self.log(rank)?.ops.get(number as usize)
    }

    /// The last operation of the group that a rank entered.
    pub(super) fn last(&self, group: u32, rank: u32) -> Option<u64> {
        let last = *self.lanes[group as usize].get(&rank)?.last()?;
        Some(self.op(rank, last)?.sequence)
    }
}
