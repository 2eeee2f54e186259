//! Who was waited for longest in operations that ended well.
//!
//! ```text
//! rank 0   |  all_reduce .................. |
//! rank 1            late    |  all_reduce . |     in the operation for the shortest time: it entered last
//! rank 2     |  all_reduce ................ |
//! ```
//!
//! If every rank needs every other rank's part, no rank finishes before the last has arrived, and all finish at about the same
//! time. So a rank is late by the difference between the longest time in the operation and its own. This needs no common clock,
//! which processes do not have.
//!
//! A rank that is stopped within an operation, after it has sent its part, is long in the operation as well, although no rank waited for
//! it. So an operation counts only if half of the ranks stayed in it for long: in the next operation the others wait for the stopped
//! rank.

use crate::judge::{Lanes, clocks_agree, of_group};
use crate::model::{DumpedJob, Log, Op, OpCall, OpState};
use std::collections::BTreeMap;

/// The rank that the others waited for longest.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// The rank that entered the operation last.
    pub rank: u32,
    /// The operation's number in its group; the last one's, if it is slow between operations.
    pub sequence: u64,
    /// The time between the first and the last rank, in nanoseconds.
    pub late: i64,
    /// All of this in a sentence.
    pub said: String,
}

/// For each rank, how long it was in an operation in nanoseconds, its number and its call.
type Stays = Vec<(i64, u32, u32)>;

/// How many times longer than others a rank is between its calls if it is slow.
const SLOWER: i64 = 2;

/// Of ranks that send messages: the one that is longest between the end of one call and the next call. Who waits for whom in a pipeline
/// depends on the order of its stages, and does not tell.
fn busiest(job: &DumpedJob) -> Option<Straggler> {
    let sends = |log: &Log| log.ops.iter().any(|op| op.message.is_some() && op.ended > 0);
    if !job.logs.values().any(sends) {
        return None;
    }
    let typical = |log: &Log| {
        let mut last = 0;
        let mut gaps = Vec::new();
        for op in &log.ops {
            gaps.extend((last > 0 && op.called >= last).then_some(op.called - last));
            last = last.max(op.ended);
        }
        gaps.sort_unstable();
        gaps.get(gaps.len() / 2).copied()
    };
    let mut all: Vec<(i64, u32)> =
        job.logs.iter().filter_map(|(rank, log)| Some((typical(log)?, *rank))).collect();
    all.sort_unstable();
    let (longest, rank) = all.pop()?;
    let (next, _) = *all.last()?;
    if longest < SLOWER * next.max(1) {
        return None;
    }
    let sequence = job.logs.get(&rank)?.ops.last()?.sequence;
    let (late, ms) = (longest - next, |nanos: i64| nanos as f64 / 1e6);
    let said = format!(
        "rank {rank} is slow: it is {:.3} ms between two of its calls, and any other rank at most {:.3} ms",
        ms(longest),
        ms(next)
    );
    Some(Straggler { rank, sequence, late, said })
}

/// Finds the straggler. `None` if no all-reduce, all-gather, reduce-scatter, all-to-all or barrier succeeded on all its ranks and is in
/// all their records, with times.
pub fn straggler(job: &DumpedJob) -> Option<Straggler> {
    if let Some(found) = busiest(job) {
        return Some(found);
    }
    let lanes = Lanes::new(job);
    // Of a recorder that knows no ends, the ranks' clocks have to agree: all leave an operation at the same time.
    let ranks: Vec<u32> = job.logs.keys().copied().collect();
    let endless =
        clocks_agree(job, &ranks) && job.logs.values().flat_map(|log| &log.ops).all(|op| op.ended == 0);
    let together = |op: &&Op| {
        let known = op.called > 0 && (op.ended > 0 || endless);
        op.state == OpState::Done && known && job.calls.get(op.call).is_some_and(OpCall::needs_all_parts)
    };
    let all = (0..).zip(&job.groups).flat_map(|(number, group)| {
        let whole = lanes.operations(number).filter(|(_, parts)| parts.len() == group.members.len());
        whole.map(move |(sequence, parts)| (number, sequence, parts))
    });
    let found = all.filter_map(|(group, sequence, parts)| {
        let stay = |(rank, number): &(u32, u32)| {
            let op = lanes.op(*rank, *number).filter(together)?;
            Some((op.ended - op.called, *rank, op.call))
        };
        let mut stays = parts.iter().map(stay).collect::<Option<Stays>>()?;
        stays.sort_unstable();
        let [(short, rank, call), .., (long, first, _)] = stays[..] else { return None };
        let (half, late) = (stays[stays.len() / 2].0 - short, long - short);
        let (of, call) = (of_group(job, group), job.calls.get(call)?);
        let said = format!(
            "rank {rank} was waited for longest: about {:.3} ms by rank {first}, in operation {sequence}{of}, {call}",
            late as f64 / 1e6
        );
        Some((half, Straggler { rank, sequence, late, said }))
    });
    // One long wait, as at the start, says less than many.
    let mut by_rank: BTreeMap<u32, (i64, i64, Option<Straggler>)> = BTreeMap::new();
    for (half, straggler) in found {
        let (sum, longest, worst) = by_rank.entry(straggler.rank).or_default();
        *sum += half;
        if worst.is_none() || half > *longest {
            (*longest, *worst) = (half, Some(straggler));
        }
    }
    by_rank.into_values().max_by_key(|(sum, ..)| *sum)?.2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RankGroup;

    /// The job of three ranks, each with its own clock, that called all-reduces, which each rank entered and left at these times.
    fn job(ranks: [(i64, [(i64, i64); 2]); 3]) -> DumpedJob {
        let mut job = DumpedJob { size: 3, ..DumpedJob::default() };
        let call = job.calls.number(&OpCall { name: "all_reduce".into(), ..OpCall::default() });
        job.groups.push(RankGroup { members: vec![0, 1, 2], ..RankGroup::default() });
        for (rank, (clock, times)) in (0..).zip(ranks) {
            let op = |(sequence, (called, ended)): (u64, (i64, i64))| Op {
                group: 0,
                sequence,
                call,
                place: 0,
                message: None,
                state: OpState::Done,
                called: clock + called,
                ended: clock + ended,
                limit_ms: 0,
            };
            let ops = (0..).zip(times).map(op).collect();
            job.logs.insert(rank, Log { ops, ..Log::default() });
        }
        job
    }

    /// Regression: rank 1 is stopped for 8 s within the first operation, after it has sent its part.
    #[test]
    fn a_rank_that_was_stopped_within_an_operation_is_no_witness() {
        let all =
            [(0, [(1, 3), (10, 8000)]), (7_000_000, [(1, 7999), (7999, 8000)]), (9, [(2, 3), (11, 8001)])];
        let found = straggler(&job(all)).unwrap();
        assert_eq!((found.rank, found.sequence), (1, 1), "{found:?}");
    }
}
