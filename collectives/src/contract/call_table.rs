//! The call table of a group: which rank entered which operation with which call, which ranks have left, and the first error.
//!
//! ```text
//! operation   first caller   its call              entered
//!     7       rank 2         all_reduce(10 x f32)  0 . 2 3      rank 1 enters with another call: both are named
//!     8       rank 0         barrier               0 . . .      rank 1 leaves after 7: it is lost, rank 0 gets the error
//! ```
//! Disagreements are found as soon as the second rank calls, also between ranks that exchange no frame. The table is plain data: a
//! backend guards it with a lock and wakes waiting ranks when a failure is recorded.

use crate::error::Lost;
use crate::{Call, Error, Rank, Result};
use std::collections::BTreeMap;

/// The call table of one group.
pub(crate) struct CallTable {
    size: u32,
    /// Operations that some rank has entered and some has not, by number.
    open: BTreeMap<u64, Entry>,
    /// For each rank that has left: how many operations it had entered, and how it left.
    left: Vec<Option<(u64, Lost)>>,
    /// How many operations each rank has entered.
    progress: Vec<u64>,
    failure: Option<Error>,
    /// The ranks that requested to shrink the group.
    shrinking: Vec<Rank>,
    /// The survivors once decided, in order of ranks. The list is the same for all ranks.
    survivors: Option<Vec<Rank>>,
}

struct Entry {
    first: Rank,
    call: Call,
    entered: Vec<bool>,
    missing: u32,
}

impl CallTable {
    pub fn new(size: u32) -> CallTable {
        CallTable {
            size,
            open: BTreeMap::new(),
            left: vec![None; size as usize],
            progress: vec![0; size as usize],
            failure: None,
            shrinking: Vec::new(),
            survivors: None,
        }
    }

    /// The group's first error from `rank`'s point of view.
    pub fn failure(&self, rank: Rank) -> Option<Error> {
        self.failure.as_ref().map(|error| error.seen_by(rank))
    }

    /// Records an error unless the group has one already. Returns the group's error from `rank`'s point of view.
    pub fn fail(&mut self, rank: Rank, error: Error) -> Error {
        self.failure.get_or_insert(error).seen_by(rank)
    }

    /// `rank` enters the operation that `call` numbers.
    pub fn enter(&mut self, rank: Rank, call: &Call) -> Result<()> {
        if let Some(error) = self.failure(rank) {
            return Err(error);
        }
        if self.left[rank.index()].as_ref().is_some_and(|(operations, _)| *operations <= call.sequence) {
            return Err(Error::Argument(format!(
                "rank {rank} has left this communicator and cannot call {call}"
            )));
        }
        let progress = &mut self.progress[rank.index()];
        *progress = (*progress).max(call.sequence + 1);
        let size = self.size;
        let entry = self.open.entry(call.sequence).or_insert_with(|| Entry {
            first: rank,
            call: call.clone(),
            entered: vec![false; size as usize],
            missing: size,
        });
        if entry.call != *call {
            let (peer, theirs) = (entry.first, Box::new(entry.call.clone()));
            return Err(self.fail(rank, Error::Mismatch { rank, mine: Box::new(call.clone()), peer, theirs }));
        }
        if !std::mem::replace(&mut entry.entered[rank.index()], true) {
            entry.missing -= 1;
        }
        if entry.missing == 0 {
            self.open.remove(&call.sequence);
        }
        let gone =
            |left: &Option<(u64, Lost)>| left.as_ref().is_some_and(|(after, _)| *after <= call.sequence);
        match self.left.iter().position(gone) {
            Some(lost) => Err(self.lose(rank, Rank(lost as u32), Some(call))),
            None => Ok(()),
        }
    }

    /// Removes an operation that all ranks have completed without messages, although not all entered it in this table.
    pub fn close(&mut self, sequence: u64) {
        self.open.remove(&sequence);
    }

    /// `rank` leaves after `operations` operations, each of which it has finished. Returns an error if another rank is in a later
    /// operation, or if `rank` has entered a later operation.
    pub fn leave(&mut self, rank: Rank, operations: u64, cause: Lost) -> Result<()> {
        if self.left[rank.index()].is_some() {
            return Ok(());
        }
        self.left[rank.index()] = Some((operations, cause));
        self.settle();
        match self.open.range(operations..).next() {
            Some((_, entry)) => {
                let call = entry.call.clone();
                Err(self.lose(rank, rank, Some(&call)))
            }
            // All ranks have entered an operation that the leaving rank does not finish.
            None if operations < self.progress[rank.index()] => Err(self.lose(rank, rank, None)),
            None => Ok(()),
        }
    }

    /// `rank` dies, `within` an operation or outside of any. Returns whether the group fails because of it.
    pub fn die(&mut self, rank: Rank, cause: Lost, within: Option<&Call>) -> bool {
        let entered = |(_, entry): &(&u64, &Entry)| !entry.entered[rank.index()];
        let missed = self.open.iter().find(entered).map(|(_, entry)| entry.call.clone());
        let next = self.progress[rank.index()];
        if self.left[rank.index()].is_none() {
            self.left[rank.index()] = Some((next, cause));
        }
        let needed = within.cloned().or(missed);
        needed.is_some_and(|call| {
            self.lose(rank, rank, Some(&call));
            true
        })
    }

    /// The error that a lost rank gets about itself.
    pub fn lost(&self, rank: Rank) -> Error {
        let left = self.left[rank.index()].as_ref();
        let cause = left.map_or(Lost::ReturnedEarly { operations: 0 }, |(_, cause)| cause.clone());
        Error::lost(rank, cause, None)
    }

    /// Whether a rank has left.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.left[rank.index()].is_some()
    }

    /// Records that `me` needs `lost`, which has left.
    pub fn lose(&mut self, me: Rank, lost: Rank, call: Option<&Call>) -> Error {
        let cause = match &self.left[lost.index()] {
            Some((_, cause)) => cause.clone(),
            None => Lost::ReturnedEarly { operations: 0 },
        };
        self.fail(me, Error::lost(lost, cause, call.cloned().map(Box::new)))
    }

    /// `rank` requests to shrink the group. The group fails, so that no rank still waits in it.
    pub fn shrink(&mut self, rank: Rank) {
        self.fail(rank, Error::Aborted { by: rank, why: "it continues with the surviving ranks".into() });
        if !self.shrinking.contains(&rank) {
            self.shrinking.push(rank);
        }
        let size = self.size as usize;
        let open =
            (0..size).filter(|at| self.left[*at].is_none() && !self.shrinking.contains(&Rank(*at as u32)));
        if open.count() == 0 {
            self.decide();
        }
    }

    /// A rank has left: decides the survivors if the ranks that requested to shrink now wait for no other rank.
    fn settle(&mut self) {
        if let Some(first) = self.shrinking.first().copied() {
            self.shrink(first);
        }
    }

    /// Decides the survivors: the ranks that have requested to shrink and have not left. The first decision is final.
    pub fn decide(&mut self) {
        if self.survivors.is_none() && !self.shrinking.is_empty() {
            let mut survivors = self.shrinking.clone();
            survivors.retain(|rank| self.left[rank.index()].is_none());
            survivors.sort();
            self.survivors = Some(survivors);
        }
    }

    /// The survivors once decided; an error for a rank that requested to shrink too late.
    pub fn survivors(&self, rank: Rank) -> Option<Result<Vec<Rank>>> {
        let survivors = self.survivors.as_ref()?;
        let late = || Error::Poisoned { cause: format!("the other ranks continued without rank {rank}") };
        Some(if survivors.contains(&rank) { Ok(survivors.clone()) } else { Err(late()) })
    }

    /// The ranks that have not entered an operation that some rank has entered.
    pub fn absent(&self, sequence: u64) -> Vec<Rank> {
        let entered = self.open.get(&sequence).map(|entry| &entry.entered[..]).unwrap_or_default();
        (0..).zip(entered).filter(|(_, entered)| !**entered).map(|(rank, _)| Rank(rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, DType, Operation};

    fn call(sequence: u64, count: u64) -> Call {
        Call::plain(Operation::Collective(Collective::Barrier), sequence, count, DType::U8)
    }

    #[test]
    fn equal_calls_pass_and_leave_nothing_open() {
        let mut calls = CallTable::new(3);
        for rank in 0..3 {
            assert_eq!(calls.enter(Rank(rank), &call(0, 5)), Ok(()));
        }
        assert!(calls.open.is_empty());
    }

    #[test]
    fn the_second_caller_of_another_call_names_both() {
        let mut calls = CallTable::new(3);
        calls.enter(Rank(2), &call(0, 5)).unwrap();
        let error = calls.enter(Rank(0), &call(0, 6)).unwrap_err();
        assert!(matches!(&error, Error::Mismatch { rank: Rank(0), mine, peer: Rank(2), theirs }
            if mine.count == 6 && theirs.count == 5));
        assert_eq!(calls.failure(Rank(2)), Some(error.seen_by(Rank(2))));
        assert_eq!(calls.enter(Rank(1), &call(0, 5)), Err(error));
    }

    #[test]
    fn leaving_hurts_only_those_in_a_later_operation() {
        let mut calls = CallTable::new(2);
        calls.enter(Rank(1), &call(0, 1)).unwrap();
        calls.enter(Rank(0), &call(0, 1)).unwrap();
        assert_eq!(calls.leave(Rank(1), 1, Lost::ReturnedEarly { operations: 1 }), Ok(()));
        assert_eq!(calls.failure(Rank(0)), None);
        let error = calls.enter(Rank(0), &call(1, 1)).unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }));
    }

    #[test]
    fn survivors_are_decided_once_all_have_asked_or_left() {
        let mut calls = CallTable::new(4);
        calls.leave(Rank(1), 0, Lost::ReturnedEarly { operations: 0 }).unwrap();
        calls.shrink(Rank(3));
        calls.shrink(Rank(0));
        assert_eq!(calls.survivors(Rank(0)), None);
        assert!(matches!(calls.failure(Rank(2)), Some(Error::Aborted { by: Rank(3), .. })));
        let _ = calls.leave(Rank(2), 0, Lost::ReturnedEarly { operations: 0 });
        assert_eq!(calls.survivors(Rank(0)), Some(Ok(vec![Rank(0), Rank(3)])));
        // A decision is final: a rank that requests to shrink too late gets an error.
        let _ = calls.leave(Rank(3), 0, Lost::ReturnedEarly { operations: 0 });
        calls.shrink(Rank(2));
        assert_eq!(calls.survivors(Rank(0)), Some(Ok(vec![Rank(0), Rank(3)])));
        assert!(matches!(calls.survivors(Rank(2)), Some(Err(Error::Poisoned { .. }))));
    }

    #[test]
    fn absent_ranks_are_those_that_never_entered() {
        let mut calls = CallTable::new(4);
        calls.enter(Rank(1), &call(7, 1)).unwrap();
        assert_eq!(calls.absent(7), [Rank(0), Rank(2), Rank(3)]);
        assert_eq!(calls.absent(8), []);
    }
}
