//! The straggler: the rank that the others waited for longest in an operation that succeeded.
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

use super::record::{Entry, Record, State};
use super::triage::of_group;
use crate::{Collective, Rank};
use std::collections::BTreeMap;
use std::fmt;

/// Operations in which every rank needs every other's part.
const TOGETHER: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Barrier,
];

/// The rank that the others waited for longest.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// The communicator; 0 is the world.
    pub group: u64,
    /// The number of the operation.
    pub sequence: u64,
    /// The call, as text.
    pub call: String,
    /// The rank that entered the operation last, as numbered in that communicator.
    pub rank: Rank,
    /// The rank that entered the operation first.
    pub first: Rank,
    /// The time between the first and the last rank, in microseconds.
    pub late_us: f64,
}

/// Finds the straggler. `None` if no all-reduce, all-gather, reduce-scatter, all-to-all or barrier succeeded on all its ranks and is in
/// all their records.
pub fn straggler(records: &[Record]) -> Option<Straggler> {
    let mut operations: BTreeMap<(u64, u64), Vec<(f64, &Entry)>> = BTreeMap::new();
    for entry in records.iter().flat_map(|record| &record.entries) {
        let together = TOGETHER.iter().any(|collective| collective.name() == entry.operation);
        if let (State::Done, true, Some(started), Some(ended)) =
            (entry.state, together, entry.started_us, entry.ended_us)
        {
            operations.entry((entry.group, entry.sequence)).or_default().push((ended - started, entry));
        }
    }
    let whole = operations.into_iter().filter(|(_, stays)| stays.len() == stays[0].1.size as usize);
    let found = whole.filter_map(|((group, sequence), mut stays)| {
        stays.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [(short, last), .., (long, first)] = stays[..] else { return None };
        let (rank, call, half) = (Rank(last.rank), last.call(), stays[stays.len() / 2].0 - short);
        Some((
            half,
            Straggler { group, sequence, call, rank, first: Rank(first.rank), late_us: long - short },
        ))
    });
    found.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, straggler)| straggler)
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Straggler { group, sequence, call, rank, first, late_us } = self;
        let (group, late) = (of_group(*group), late_us / 1e3);
        write!(
            f,
            "rank {rank} was waited for longest: about {late:.3} ms by rank {first}, in operation {sequence}{group}, {call}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Header;
    use super::*;
    use crate::{Call, DType, Operation};

    /// The record of one of three ranks, with its own clock; a call has the times at which the rank entered and left it.
    fn record(rank: u32, clock: f64, calls: &[(Collective, f64, f64)]) -> Record {
        let entries = calls.iter().zip(0..).map(|((collective, started, ended), sequence)| {
            let call = Call::plain(Operation::Collective(*collective), sequence, 8, DType::F32);
            let (started_us, ended_us) = (Some(clock + started), Some(clock + ended));
            Entry { state: State::Done, started_us, ended_us, ..Entry::of((0, Rank(rank), 3), &call, None) }
        });
        let header = Header { flight: 1, rank, size: 3, reason: String::new(), step: None, writer: None };
        Record { header, entries: entries.collect() }
    }

    /// Regression: rank 1 is stopped for 8 s within the first operation, after it has sent its part.
    #[test]
    fn a_rank_that_was_stopped_within_an_operation_is_no_witness() {
        use Collective::AllReduce;
        let all = [
            record(0, 0.0, &[(AllReduce, 1.0, 3.0), (AllReduce, 10.0, 8000.0)]),
            record(1, 7e6, &[(AllReduce, 1.0, 7999.0), (AllReduce, 7999.0, 8000.0)]),
            record(2, -9.0, &[(AllReduce, 2.0, 3.0), (AllReduce, 11.0, 8001.0)]),
        ];
        let found = straggler(&all).unwrap();
        assert_eq!((found.rank, found.sequence), (Rank(1), 1), "{found}");
    }

    #[test]
    fn the_straggler_is_named_without_a_common_clock() {
        use Collective::{AllReduce, Barrier, Broadcast};
        let mut all = [
            record(0, 0.0, &[(AllReduce, 1.0, 3.0), (Barrier, 100.0, 5100.0), (Broadcast, 6000.0, 6001.0)]),
            record(1, 7e6, &[(AllReduce, 1.0, 4.0), (Barrier, 5000.0, 5101.0), (Broadcast, 6000.0, 6003.0)]),
            record(2, -9.0, &[(AllReduce, 2.0, 3.0), (Barrier, 200.0, 5099.0), (Broadcast, 6000.0, 16000.0)]),
        ];
        let says =
            "rank 1 was waited for longest: about 4.899 ms by rank 0, in operation 1, barrier(8 x f32)";
        assert_eq!(straggler(&all).unwrap().to_string(), says, "in a broadcast the root waits for nobody");
        // The barrier failed on one rank, so it no longer shows which rank was late.
        all[2].entries[1].state = State::Failed;
        assert_eq!(straggler(&all).unwrap().sequence, 0);
        assert_eq!(straggler(&all[..2]), None, "somebody is not on record");
    }
}
