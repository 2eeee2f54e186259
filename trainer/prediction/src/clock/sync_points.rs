//! The synchronisation points of ranks whose clocks depend on each other, such as one rank of each stage of a pipeline. Each rank is
//! on a thread.
//!
//! A rank's clock depends only on its own steps and on the times that it gets here, so the order in which threads run does not matter.
//!
//! ```text
//! collective   all have entered  -> the latest entry
//! message      start = max(sender ready, receiver ready)     a rank is ready once its previous message on the channel is done
//! ```

use super::queue::Queue;
use crate::MessageTimes;
use allfold_base::lock;
use allfold_collectives::Rank;
use allfold_sim::Picos;
use allfold_trainer::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A collective of several stepped ranks: its communicator with the first rank there, and its number.
pub(crate) type SyncPoint = (Queue, Rank, u64);

/// Where stepped ranks wait for each other.
pub(crate) struct SyncPoints {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many ranks have entered each collective, and the latest of their times.
    entered: BTreeMap<SyncPoint, (usize, Picos)>,
    ends: Vec<End>,
    /// For each rank and channel: the end that was posted last.
    last: BTreeMap<(usize, usize), usize>,
    /// The ends that have no other end yet, in order: by channel, sender, receiver and whether they send.
    unmatched: BTreeMap<(usize, usize, usize, bool), Vec<usize>>,
    /// Matched ends, sender and receiver, whose times are not known yet.
    matched: Vec<(usize, usize)>,
    /// Ranks that have not ended; those of them that wait, since the last change.
    alive: usize,
    waiting: usize,
    changes: u64,
    failed: Option<String>,
}

/// One end of a message.
struct End {
    posted: Picos,
    /// The previous end of the same rank on the same channel.
    previous: Option<usize>,
    takes: MessageTimes,
    done: Option<Picos>,
}

/// One end of a message, as a rank posts it.
#[derive(Clone, Copy)]
pub(crate) struct Post {
    /// The rank that posts, and the other one.
    pub rank: usize,
    pub peer: usize,
    pub channel: usize,
    pub sends: bool,
    pub at: Picos,
    pub takes: MessageTimes,
}

/// The message of the errors that ranks get because another rank has failed.
const STOPPED: &str = "another rank has failed";

/// Whether a rank failed only because another rank did.
pub(crate) fn is_consequence(error: &Error) -> bool {
    matches!(error, Error::Strategy(why) if why == STOPPED)
}

impl State {
    /// When a rank is ready for the message of one of its ends; `None` while an earlier message of the rank is under way.
    fn ready(&self, end: usize) -> Option<Picos> {
        let End { posted, previous, .. } = self.ends[end];
        match previous {
            None => Some(posted),
            Some(previous) => Some(self.ends[previous].done?.later(posted)),
        }
    }

    /// Times every message whose two ends are ready.
    fn settle(&mut self) {
        let mut progressed = true;
        while std::mem::take(&mut progressed) {
            for (from, to) in std::mem::take(&mut self.matched) {
                let (Some(sender), Some(receiver)) = (self.ready(from), self.ready(to)) else {
                    self.matched.push((from, to));
                    continue;
                };
                let (start, takes) = (sender.later(receiver), self.ends[from].takes);
                self.ends[from].done = Some(start + takes.left);
                self.ends[to].done = Some(start + takes.arrived);
                progressed = true;
            }
        }
    }
}

impl SyncPoints {
    /// The synchronisation points of this many ranks.
    pub fn new(ranks: usize) -> SyncPoints {
        let state = State { alive: ranks, ..State::default() };
        SyncPoints { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn change(&self, mut state: MutexGuard<State>) {
        state.settle();
        (state.changes, state.waiting) = (state.changes + 1, 0);
        self.changed.notify_all();
    }

    /// Waits until `known` gives a value.
    fn wait_for<T>(&self, known: impl Fn(&State) -> Option<T>) -> Result<T> {
        let (mut state, mut seen) = (lock(&self.state), None);
        loop {
            if let Some(value) = known(&state) {
                return Ok(value);
            }
            if state.failed.is_some() {
                return Err(Error::Strategy(STOPPED.into()));
            }
            if seen.replace(state.changes) != Some(state.changes) {
                state.waiting += 1;
            }
            if state.waiting == state.alive {
                let why = "every rank waits for another rank, and none can continue";
                state.failed = Some(why.into());
                self.change(state);
                return Err(Error::Strategy(why.into()));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Enters a collective of `of` ranks at this time. Returns the latest time at which any of these ranks entered.
    pub fn enter(&self, point: SyncPoint, of: usize, at: Picos) -> Result<Picos> {
        let mut state = lock(&self.state);
        let entered = state.entered.entry(point).or_default();
        *entered = (entered.0 + 1, entered.1.later(at));
        self.change(state);
        self.wait_for(|state| {
            let &(ranks, latest) = state.entered.get(&point)?;
            (ranks == of).then_some(latest)
        })
    }

    /// Posts one end of a message. Returns its number, for [`SyncPoints::done`].
    pub fn post(&self, post: Post) -> usize {
        let Post { rank, peer, channel, sends, at, takes } = post;
        let mut state = lock(&self.state);
        let number = state.ends.len();
        let previous = state.last.insert((rank, channel), number);
        state.ends.push(End { posted: at, previous, takes, done: None });
        let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
        let others = state.unmatched.entry((channel, from, to, !sends)).or_default();
        if others.is_empty() {
            state.unmatched.entry((channel, from, to, sends)).or_default().push(number);
        } else {
            let other = others.remove(0);
            state.matched.push(if sends { (number, other) } else { (other, number) });
        }
        self.change(state);
        number
    }

    /// When an end of a message is done.
    pub fn done(&self, end: usize) -> Result<Picos> {
        self.wait_for(|state| state.ends[end].done)
    }

    /// A rank has ended; with an error, all others end too.
    pub fn end(&self, failed: Option<String>) {
        let mut state = lock(&self.state);
        state.alive -= 1;
        if state.failed.is_none() {
            state.failed = failed;
        }
        self.change(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::scope;

    const TAKES: MessageTimes = MessageTimes { left: Picos(10), arrived: Picos(12) };

    fn post(rank: usize, channel: usize, sends: bool, at: u64) -> Post {
        Post { rank, peer: 1 - rank, channel, sends, at: Picos(at), takes: TAKES }
    }

    #[test]
    fn messages_of_a_channel_follow_each_other_on_both_sides() {
        let sync_points = SyncPoints::new(2);
        let sent = [0, 1].map(|at| sync_points.post(post(0, 0, true, at)));
        let received = [5, 6].map(|at| sync_points.post(post(1, 0, false, at)));
        // The first starts at 5. The sender is ready for the second at 15, the receiver at 17.
        assert_eq!(sent.map(|end| sync_points.done(end).unwrap()), [15, 27].map(Picos));
        assert_eq!(received.map(|end| sync_points.done(end).unwrap()), [17, 29].map(Picos));
    }

    #[test]
    fn a_collective_begins_when_the_last_rank_has_entered() {
        let sync_points = SyncPoints::new(2);
        let latest = scope(|threads| {
            let first = threads.spawn(|| sync_points.enter((Queue::World, Rank(0), 1), 2, Picos(7)).unwrap());
            (sync_points.enter((Queue::World, Rank(0), 1), 2, Picos(3)).unwrap(), first.join().unwrap())
        });
        assert_eq!(latest, (Picos(7), Picos(7)));
    }

    #[test]
    fn ranks_that_wait_for_each_other_for_ever_are_told() {
        let sync_points = SyncPoints::new(2);
        let errors = scope(|threads| {
            let other =
                threads.spawn(|| sync_points.done(sync_points.post(post(1, 0, false, 0))).unwrap_err());
            [sync_points.done(sync_points.post(post(0, 0, false, 0))).unwrap_err(), other.join().unwrap()]
        });
        assert_eq!(errors.iter().filter(|error| is_consequence(error)).count(), 1, "{errors:?}");
        // The other rank has ended, and this one waits for it.
        let alone = SyncPoints::new(2);
        alone.end(None);
        assert!(!is_consequence(&alone.done(alone.post(post(0, 0, true, 0))).unwrap_err()));
    }
}
