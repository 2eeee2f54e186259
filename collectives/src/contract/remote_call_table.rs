//! A rank's copy of the group's state: its own calls, the calls that peers announced, the ranks that left, and the first error.
//!
//! The rules are those of [`super::CallTable`], with one exception: a rank announces a call to its peers only after it has
//! waited for a while. Calls that disagree are found in a frame or in such an announcement.

use super::fingerprint::Fingerprint;
use crate::{Call, Error, Lost, Rank, Result};
use std::collections::{BTreeMap, VecDeque};

/// Number of own calls that a rank remembers.
const PAST: usize = 1024;
/// Limit on the remembered calls of a peer that is ahead of this rank. The peer waits in one of them, so a few suffice.
const AHEAD: usize = 16;

pub(crate) struct RemoteCallTable {
    me: Rank,
    /// Own calls, by number; the last [`PAST`].
    past: VecDeque<(u64, Fingerprint)>,
    /// The operation in progress.
    current: Option<Call>,
    /// The algorithm of this rank's last call that had one, also used to decode the calls of peers; empty if there is none.
    pub known: &'static str,
    peers: Vec<Peer>,
    failure: Option<Error>,
}

#[derive(Clone, Default)]
struct Peer {
    /// The calls that the peer announced of operations that this rank has not entered, by number.
    ahead: BTreeMap<u64, Fingerprint>,
    /// The latest operation that the peer announced.
    latest: Option<u64>,
    left: Option<(u64, Lost)>,
}

impl RemoteCallTable {
    pub fn new(me: Rank, size: usize) -> RemoteCallTable {
        let peers = vec![Peer::default(); size];
        RemoteCallTable { me, past: VecDeque::new(), current: None, known: "", peers, failure: None }
    }

    /// The group's first error.
    pub fn failure(&self) -> Option<Error> {
        self.failure.as_ref().map(|error| error.seen_by(self.me))
    }

    /// The cause of the failure, in the form that is sent to other ranks.
    pub fn cause(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Records an error. Returns whether it is the first.
    pub fn fail(&mut self, error: &Error) -> bool {
        let first = self.failure.is_none();
        self.failure.get_or_insert_with(|| error.clone());
        first
    }

    /// This rank enters an operation.
    ///
    /// # Errors
    /// The group has failed, or fails now because a peer made another call or has left.
    pub fn enter(&mut self, call: &Call) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let mine = Fingerprint::of(call);
        self.known = if call.algorithm.is_empty() { self.known } else { call.algorithm };
        self.past.push_back((call.sequence, mine));
        if self.past.len() > PAST {
            self.past.pop_front();
        }
        self.current = Some(call.clone());
        for peer in 0..self.peers.len() {
            let theirs = self.peers[peer].ahead.remove(&call.sequence);
            self.peers[peer].ahead.retain(|sequence, _| *sequence > call.sequence);
            if let Some(theirs) = theirs.filter(|theirs| *theirs != mine) {
                return Err(self.disagree(Rank(peer as u32), call.sequence, theirs));
            }
        }
        match self.gone(call.sequence) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The operation in progress is done.
    pub fn done(&mut self) {
        self.current = None;
    }

    /// A peer announced that it entered an operation. Returns an error if this rank made another call.
    pub fn announced(&mut self, peer: Rank, sequence: u64, theirs: Fingerprint) -> Option<Error> {
        let place = self.peers.get_mut(peer.index())?;
        place.latest = place.latest.max(Some(sequence));
        let entered = self.past.back().is_some_and(|(last, _)| *last >= sequence);
        if !entered {
            place.ahead.insert(sequence, theirs);
            while place.ahead.len() > AHEAD {
                place.ahead.pop_last();
            }
            return None;
        }
        let mine = self.past.iter().rev().find(|(number, _)| *number == sequence).map(|(_, mine)| *mine)?;
        (mine != theirs).then(|| self.disagree(peer, sequence, theirs))
    }

    /// A peer leaves after `operations` operations. Returns an error if this rank is in a later operation.
    pub fn leave(&mut self, peer: Rank, operations: u64, cause: Lost) -> Option<Error> {
        let place = self.peers.get_mut(peer.index())?;
        match &mut place.left {
            // The reason that a rank announced is retained; the end of its connection is only a consequence.
            Some(_) => return None,
            left => *left = Some((operations, cause)),
        }
        let current = self.current.as_ref()?.sequence;
        self.gone(current)
    }

    /// How a peer left, if it has left.
    pub fn left(&self, peer: Rank) -> Option<&Lost> {
        self.peers.get(peer.index()).and_then(|peer| peer.left.as_ref()).map(|(_, cause)| cause)
    }

    /// The ranks that are not known to have entered an operation, neither by an announcement nor by `known`, which returns the latest
    /// operation for which a rank has sent a message.
    pub fn absent(&self, sequence: u64, known: impl Fn(Rank) -> Option<u64>) -> Vec<Rank> {
        let ranks = (0..self.peers.len() as u32).map(Rank).filter(|rank| *rank != self.me);
        ranks
            .filter(|rank| {
                self.peers[rank.index()].latest.max(known(*rank)).is_none_or(|latest| latest < sequence)
            })
            .collect()
    }

    /// The error for a peer whose call of this number differs from this rank's, or whose frame belongs to no call of this rank.
    pub fn disagree(&self, peer: Rank, sequence: u64, theirs: Fingerprint) -> Error {
        let mine = self.past.iter().rev().find(|(number, _)| *number == sequence);
        let mine = mine.and_then(|(_, mine)| mine.call(sequence, self.known));
        let rank = self.me;
        match (mine, theirs.call(sequence, self.known)) {
            (Some(mine), Some(theirs)) if mine != theirs => {
                Error::Mismatch { rank, mine: Box::new(mine), peer, theirs: Box::new(theirs) }
            }
            (mine, theirs) => {
                let what = match theirs {
                    Some(theirs) => format!("one message more than expected, of {theirs}"),
                    None => "the peer announced an unknown call".into(),
                };
                let unknown = || Call::plain(crate::Operation::PointToPoint, sequence, 0, crate::DType::U8);
                let call = Box::new(self.current.clone().or(mine).unwrap_or_else(unknown));
                Error::Protocol { rank, peer, call, round: 0, what }
            }
        }
    }

    /// The loss of a peer that left before this operation, if there is one.
    fn gone(&self, sequence: u64) -> Option<Error> {
        let call = self.current.clone().map(Box::new);
        self.peers.iter().zip(0..).find_map(|(peer, rank)| {
            let (_, cause) = peer.left.as_ref().filter(|(operations, _)| *operations <= sequence)?;
            Some(Error::lost(Rank(rank), cause.clone(), call.clone()))
        })
    }

    /// The error for the loss of a peer that `call` needs.
    pub fn lose(&self, peer: Rank, call: Option<&Call>) -> Error {
        let cause = self.left(peer).cloned().unwrap_or(Lost::ReturnedEarly { operations: 0 });
        Error::lost(peer, cause, call.cloned().map(Box::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, DType, Operation};

    fn call(sequence: u64, count: u64) -> Call {
        Call::plain(Operation::Collective(Collective::Broadcast), sequence, count, DType::F32)
    }

    fn calls() -> RemoteCallTable {
        RemoteCallTable::new(Rank(0), 3)
    }

    #[test]
    fn calls_that_disagree_are_found_whoever_comes_first() {
        let theirs = Fingerprint::of(&call(4, 11));
        let mut late = calls();
        assert_eq!(late.announced(Rank(2), 4, theirs), None);
        let error = late.enter(&call(4, 10)).unwrap_err();
        let mut early = calls();
        early.enter(&call(4, 10)).unwrap();
        early.done();
        early.enter(&call(5, 10)).unwrap();
        assert_eq!(early.announced(Rank(2), 4, theirs), Some(error.clone()));
        assert!(matches!(error, Error::Mismatch { rank: Rank(0), mine, peer: Rank(2), theirs }
            if mine.count == 10 && theirs.count == 11));
        assert_eq!(early.announced(Rank(1), 4, Fingerprint::of(&call(4, 10))), None);
    }

    #[test]
    fn a_peer_that_leaves_is_missed_in_later_operations_only() {
        let mut calls = calls();
        calls.enter(&call(1, 1)).unwrap();
        assert_eq!(calls.leave(Rank(1), 2, Lost::ReturnedEarly { operations: 2 }), None);
        // The end of the connection of a peer that has left is no second loss.
        assert_eq!(calls.leave(Rank(1), 0, Lost::Disconnected("ended".into())), None);
        let error = calls.enter(&call(2, 1)).unwrap_err();
        assert!(matches!(
            error,
            Error::PeerLost { rank: Rank(1), cause: Lost::ReturnedEarly { operations: 2 }, .. }
        ));
    }

    #[test]
    fn a_peer_that_dies_is_missed_at_once() {
        let mut calls = calls();
        calls.enter(&call(1, 1)).unwrap();
        let error = calls.leave(Rank(2), 0, Lost::Disconnected("reset".into()));
        assert!(matches!(error, Some(Error::PeerLost { rank: Rank(2), call: Some(_), .. })));
    }

    #[test]
    fn announcements_far_ahead_are_bounded() {
        let mut calls = calls();
        for sequence in 0..10_000 {
            calls.announced(Rank(1), sequence, Fingerprint::of(&call(sequence, 1)));
        }
        assert_eq!(calls.peers[1].ahead.len(), AHEAD);
        assert_eq!(calls.absent(500, |_| None), [Rank(2)]);
    }
}
