//! Triage: compares the flight records of a run, and finds the first operation at which ranks diverge and the ranks that are behind.
//!
//! The operations of each communicator are compared in order. The result is the first operation that differs between ranks: ranks made
//! different calls, or some never entered it, or some never finished it. The ranks that are behind are named, even if they are the
//! majority. A rank that is missing because it waits in another communicator's operation is not to blame: the other operation is then the
//! result.

use super::record::{Entry, Record, State};
use crate::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The result of a triage.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Diagnosis {
    /// Ranks made different calls as the same operation of the sequence.
    Diverged {
        /// The communicator; 0 is the world.
        group: u64,
        /// The number of the operation.
        sequence: u64,
        /// Each call and the ranks that made it, the most frequent call first.
        calls: Vec<(String, Vec<Rank>)>,
        /// Ranks whose call is the next call of the other ranks: they skipped a call.
        skipped: Vec<Rank>,
    },
    /// Some ranks entered an operation that others never did.
    NeverEntered {
        /// The communicator; 0 is the world.
        group: u64,
        /// The number of the operation.
        sequence: u64,
        /// The call, as text.
        call: String,
        /// Ranks that have a record and did not enter it.
        absent: Vec<Rank>,
        /// Ranks that entered the operation.
        entered: Vec<Rank>,
    },
    /// All recorded ranks entered an operation, and some did not finish it.
    Unfinished {
        /// The communicator; 0 is the world.
        group: u64,
        /// The number of the operation.
        sequence: u64,
        /// The call, as text.
        call: String,
        /// Ranks that are still in it or failed in it.
        ranks: Vec<Rank>,
        /// The errors and their ranks.
        errors: Vec<(Rank, String)>,
    },
    /// Every operation that ranks have in common succeeded on all of them.
    Agreed {
        /// How many operations were compared.
        operations: usize,
    },
}

/// Compares the records of a run. Also returns the ranks without a record.
///
/// Ranks in the diagnosis are numbers in the communicator that the diagnosis names; ranks without a record are world ranks. A rank
/// without a record was killed, or had no reason to write one. It may be the rank that never entered the operation, so it is reported in
/// addition to the diagnosis.
pub fn triage(records: &[Record]) -> (Diagnosis, Vec<Rank>) {
    let size = records.iter().map(|record| record.header.size).max().unwrap_or(0);
    let seen: BTreeSet<u32> = records.iter().map(|record| record.header.rank).collect();
    let unseen = (0..size).filter(|rank| !seen.contains(rank)).map(Rank).collect();
    let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
    let mut operations = BTreeSet::new();
    let entries = records.iter().flat_map(|record| record.entries.iter().map(move |entry| (record, entry)));
    let waiting = entries.clone().filter(|(_, entry)| entry.state != State::Done);
    let waiting: BTreeSet<u32> = waiting.map(|(record, _)| record.header.rank).collect();
    for (record, entry) in entries.filter(|(_, entry)| entry.peer.is_none()) {
        operations.insert((entry.group, entry.sequence));
        let group = groups.entry(entry.group).or_default();
        group.calls.entry(entry.sequence).or_default().insert(Rank(entry.rank), entry);
        if waiting.contains(&record.header.rank) {
            group.waiting.insert(Rank(entry.rank));
        }
        let span = group.span.entry(Rank(entry.rank)).or_insert((entry.sequence, entry.sequence));
        *span = (span.0.min(entry.sequence), span.1.max(entry.sequence));
    }
    let found = groups.iter().filter_map(|(name, group)| group.first(*name));
    // Order of importance: different calls, and operations that ranks never entered; then operations that ranks did not enter while they
    // wait elsewhere; then failures, which may be consequences. Diagnoses of equal importance are ordered by time.
    let follows = |verdict: &Diagnosis| match verdict {
        Diagnosis::Unfinished { .. } => 2,
        Diagnosis::NeverEntered { group, absent, .. } => {
            u8::from(absent.iter().any(|rank| groups[group].waiting.contains(rank)))
        }
        _ => 0,
    };
    let first = found.min_by(|a, b| follows(&a.1).cmp(&follows(&b.1)).then(a.0.total_cmp(&b.0)));
    let verdict = first.map(|(_, verdict)| verdict);
    (verdict.unwrap_or(Diagnosis::Agreed { operations: operations.len() }), unseen)
}

/// The entries of one communicator, by operation and rank.
#[derive(Default)]
struct Group<'a> {
    calls: BTreeMap<u64, BTreeMap<Rank, &'a Entry>>,
    /// The first and the last operation that each rank remembers.
    span: BTreeMap<Rank, (u64, u64)>,
    /// The communicator's ranks that did not finish some operation, of this communicator or of another.
    waiting: BTreeSet<Rank>,
}

/// A check of one operation's entries; returns a diagnosis if it finds one.
type Look<'a> = &'a dyn Fn(u64, &BTreeMap<Rank, &Entry>) -> Option<Diagnosis>;

impl Group<'_> {
    /// The first operation that is not the same on all ranks, with the time at which it was first called.
    fn first(&self, group: u64) -> Option<(f64, Diagnosis)> {
        let find = |look: Look| {
            self.calls.iter().find_map(|(sequence, entries)| {
                let when = entries.values().map(|entry| entry.issued_us).fold(f64::INFINITY, f64::min);
                Some((when, look(*sequence, entries)?))
            })
        };
        // Unfinished operations are searched last: a rank that is behind when the others disagree in a later operation does not finish
        // its own operation.
        find(&|sequence, entries| self.diverged_or_absent(group, sequence, entries))
            .or_else(|| find(&|sequence, entries| unfinished(group, sequence, entries)))
    }

    /// The diagnosis if ranks made different calls, or some never made this call.
    fn diverged_or_absent(
        &self,
        group: u64,
        sequence: u64,
        entries: &BTreeMap<Rank, &Entry>,
    ) -> Option<Diagnosis> {
        let mut calls: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
        entries.iter().for_each(|(rank, entry)| calls.entry(entry.call()).or_default().push(*rank));
        if calls.len() > 1 {
            let mut calls: Vec<_> = calls.into_iter().collect();
            calls.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
            let next = self.calls.get(&(sequence + 1)).into_iter().flatten();
            let next: BTreeMap<Rank, String> = next.map(|(rank, entry)| (*rank, entry.call())).collect();
            let skips = |call: &str, ranks: &[Rank]| {
                next.iter().any(|(rank, after)| !ranks.contains(rank) && after == call)
            };
            let skipped = calls.iter().filter(|(call, ranks)| skips(call, ranks));
            let skipped: Vec<Rank> = skipped.flat_map(|(_, ranks)| ranks.clone()).collect();
            let skipped = if skipped.len() < entries.len() { skipped } else { Vec::new() };
            return Some(Diagnosis::Diverged { group, sequence, calls, skipped });
        }
        let call = calls.into_keys().next()?;
        // A rank whose record begins after this operation is not absent, and neither is a rank that has not finished an earlier
        // operation.
        let free = |rank: &Rank, last: &u64| {
            self.calls.get(last).and_then(|entries| entries.get(rank)).is_some_and(|e| e.state == State::Done)
        };
        let absent = self.span.iter().filter(|(rank, (_, last))| *last < sequence && free(rank, last));
        let absent: Vec<Rank> = absent.map(|(rank, _)| *rank).collect();
        if absent.is_empty() {
            return None;
        }
        let entered = entries.keys().copied().collect();
        Some(Diagnosis::NeverEntered { group, sequence, call, absent, entered })
    }
}

/// The diagnosis if some rank did not finish an operation.
fn unfinished(group: u64, sequence: u64, entries: &BTreeMap<Rank, &Entry>) -> Option<Diagnosis> {
    let unfinished = entries.iter().filter(|(_, entry)| entry.state != State::Done);
    let ranks: Vec<Rank> = unfinished.clone().map(|(rank, _)| *rank).collect();
    let call = entries.values().next().filter(|_| !ranks.is_empty())?.call();
    let errors = unfinished.filter_map(|(rank, entry)| Some((*rank, entry.error.clone()?))).collect();
    Some(Diagnosis::Unfinished { group, sequence, call, ranks, errors })
}

/// The name of a communicator in a message; empty for the world.
pub(super) fn of_group(group: u64) -> String {
    if group == 0 { String::new() } else { format!(" of communicator {group:016x}") }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |group: &u64| of_group(*group);
        match self {
            Diagnosis::Diverged { group, sequence, calls, skipped } => {
                write!(f, "diverged at operation {sequence}{}:", of(group))?;
                for (at, (call, ranks)) in calls.iter().enumerate() {
                    write!(f, "{} {} called {call}", if at > 0 { ";" } else { "" }, Rank::list(ranks))?;
                }
                match &skipped[..] {
                    [] => Ok(()),
                    skipped => write!(f, "; {} left one call out", Rank::list(skipped)),
                }
            }
            Diagnosis::NeverEntered { group, sequence, call, absent, .. } => {
                write!(f, "{} never entered operation {sequence}{}, {call}", Rank::list(absent), of(group))
            }
            Diagnosis::Unfinished { group, sequence, call, ranks, errors } => {
                write!(f, "{} did not finish operation {sequence}{}, {call}", Rank::list(ranks), of(group))?;
                match errors.first() {
                    Some((rank, error)) => write!(f, "; rank {rank} says: {error}"),
                    None => Ok(()),
                }
            }
            Diagnosis::Agreed { operations } => {
                write!(
                    f,
                    "no divergence: all {operations} operations ended well on every rank that recorded them"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Header;
    use super::*;
    use crate::{Call, Collective, DType, Operation};

    /// The record of a rank that called all-reduces of these counts, the last of them in this state.
    fn record(rank: u32, first: u64, counts: &[u64], last: State) -> Record {
        let entries = counts.iter().zip(first..).enumerate().map(|(at, (count, sequence))| {
            let call =
                Call::plain(Operation::Collective(Collective::AllReduce), sequence, *count, DType::F32);
            let state = if at + 1 == counts.len() { last } else { State::Done };
            let entry = Entry::of((0, Rank(rank), 3), &call, None);
            Entry { state, issued_us: sequence as f64, ..entry }
        });
        let header = Header { flight: 1, rank, size: 3, reason: String::new(), step: None, writer: None };
        Record { header, entries: entries.collect() }
    }

    fn verdict(records: &[Record]) -> String {
        triage(records).0.to_string()
    }

    #[test]
    fn a_single_absent_rank_is_named() {
        let all = [
            record(0, 0, &[1, 2, 3], State::Started),
            record(1, 0, &[1, 2], State::Done),
            record(2, 0, &[1, 2, 3], State::Failed),
        ];
        assert_eq!(verdict(&all), "rank 1 never entered operation 2, all_reduce(3 x f32)");
        // Of two ranks that are behind, the rank that is further behind is named.
        let all = [
            record(0, 0, &[1, 2, 3], State::Started),
            record(1, 0, &[1, 2], State::Done),
            record(2, 0, &[1], State::Done),
        ];
        assert_eq!(verdict(&all), "rank 2 never entered operation 1, all_reduce(2 x f32)");
    }

    #[test]
    fn a_call_that_was_left_out_is_seen_in_the_one_after() {
        let all = [
            record(0, 0, &[1, 2, 3], State::Failed),
            record(1, 0, &[1, 3], State::Failed),
            record(2, 0, &[1, 2, 3], State::Failed),
        ];
        let says = "diverged at operation 1: ranks 0, 2 called all_reduce(2 x f32); \
                    rank 1 called all_reduce(3 x f32); rank 1 left one call out";
        assert_eq!(verdict(&all), says);
        let all = [record(0, 0, &[1, 2], State::Failed), record(1, 0, &[1, 9], State::Failed)];
        let (Diagnosis::Diverged { sequence: 1, skipped, .. }, missing) = triage(&all) else { panic!() };
        assert_eq!((skipped, missing), (vec![], vec![Rank(2)]));
    }

    #[test]
    fn a_rank_that_waits_in_a_subgroup_is_not_blamed_in_the_parent() {
        // Rank 1 skips an operation of its half; the other half has been in the world's barrier for long.
        let world = |rank: u32, last: State| record(rank, 0, &[1, 2], last);
        let mut all = [
            record(0, 0, &[1], State::Done),
            record(1, 0, &[1], State::Done),
            world(2, State::Started),
            world(3, State::Started),
        ];
        let in_half = |rank: u32, counts: &[u64], last: State| {
            let mut entries = record(rank, 0, counts, last).entries;
            entries.iter_mut().for_each(|entry| (entry.group, entry.issued_us) = (9, 50.0 + entry.issued_us));
            entries
        };
        all[0].entries.extend(in_half(0, &[5, 6], State::Started));
        all[1].entries.extend(in_half(1, &[5], State::Done));
        assert!(
            verdict(&all).starts_with("rank 1 never entered operation 1 of communicator"),
            "{}",
            verdict(&all)
        );
    }

    #[test]
    fn overwritten_entries_are_no_absence_and_success_is_no_fault() {
        let all = [
            record(0, 0, &[1, 2, 3, 4], State::Done),
            record(1, 2, &[3, 4], State::Done),
            record(2, 3, &[4], State::Done),
        ];
        assert_eq!(triage(&all), (Diagnosis::Agreed { operations: 4 }, vec![]));
        let all = [record(0, 3, &[4], State::Started), record(1, 3, &[4], State::Done)];
        assert!(verdict(&all).starts_with("rank 0 did not finish operation 3"));
        assert_eq!(triage(&[]), (Diagnosis::Agreed { operations: 0 }, vec![]));
    }
}
