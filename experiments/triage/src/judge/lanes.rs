//! The operations of a job by group: who took part in which.

use crate::model::{DumpedJob, Op};
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
