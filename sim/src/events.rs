//! The order of events, a hash of all events of a run, and a test that two runs are the same.
//!
//! Events at the same time are ordered by (rank, stream, sequence). The order in which threads report them never matters.

use crate::hash::{GOLDEN, finalize};
use crate::{Picos, Rank};
use std::fmt;

/// An event of a run. Events are ordered by their fields, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    /// When the event happens.
    pub time: Picos,
    /// The rank that the event concerns.
    pub rank: Rank,
    /// The stream of the rank.
    pub stream: u32,
    /// The event's number in the stream.
    pub sequence: u64,
    /// Any number that distinguishes the event from others, such as a size.
    pub what: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { time, rank, stream, sequence, what } = self;
        write!(f, "{} ps, rank {rank}, stream {stream}, event {sequence} ({what})", time.0)
    }
}

/// A hash of a set of events with their times: equal for equal sets, different for almost all others. It does not depend on the
/// order in which events are added, so engines that find the same events in different ways have the same hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventHash(u64);

impl EventHash {
    /// Adds a message to `rank` that is done at `time`, in picoseconds. For speed (tens of millions of messages per second) this
    /// mixes one word, where [`EventHash::add`] mixes every field.
    #[inline]
    pub fn message(&mut self, rank: u32, time: u64) {
        let of = (u64::from(rank) + 1).wrapping_mul(GOLDEN);
        self.0 = self.0.wrapping_add(finalize(time.wrapping_add(of)));
    }

    /// Adds messages that were not timed one by one because they repeat earlier messages: `times` periods of `span` picoseconds.
    pub fn repeated(&mut self, times: u64, span: u64) {
        self.message(u32::MAX, times.rotate_left(32) ^ span);
    }

    /// Adds an event with all its fields.
    pub fn add(&mut self, event: &Event) {
        let ends = u64::from(event.rank.0) << 32 | u64::from(event.stream);
        let words = [event.time.0, ends, event.sequence, event.what];
        self.0 = self.0.wrapping_add(words.into_iter().fold(GOLDEN, mix));
    }

    /// The hash of all events added so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

fn mix(before: u64, word: u64) -> u64 {
    finalize(before ^ word)
}

/// The first difference between two runs that should have been the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two runs differ at event {index}: the first run has {}, the second has {}", named(.first), named(.second))]
pub struct Divergence {
    /// How many events before the difference are the same in both runs.
    pub index: usize,
    /// The first run's event; `None` if the run had ended.
    pub first: Option<Event>,
    /// The second run's event; `None` if the run had ended.
    pub second: Option<Event>,
}

fn named(event: &Option<Event>) -> String {
    event.as_ref().map_or("nothing".into(), Event::to_string)
}

/// Calls `run` twice and returns the hash of its events. `run` reports its events to its argument, in any order.
///
/// # Errors
/// The first event, in the order of events, that differs between the two runs.
pub fn same_twice(mut run: impl FnMut(&mut dyn FnMut(Event))) -> Result<u64, Divergence> {
    let mut events = || {
        let mut seen = Vec::new();
        run(&mut |event| seen.push(event));
        seen.sort_unstable();
        seen
    };
    let (first, second) = (events(), events());
    let same = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
    if same < first.len().max(second.len()) {
        let (first, second) = (first.get(same).copied(), second.get(same).copied());
        return Err(Divergence { index: same, first, second });
    }
    let mut hash = EventHash::default();
    first.iter().for_each(|event| hash.add(event));
    Ok(hash.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time: u64, rank: u32) -> Event {
        Event { time: Picos(time), rank: Rank(rank), stream: 0, sequence: 1, what: 8 }
    }

    #[test]
    fn the_same_events_in_another_order_are_the_same_run() {
        let mut turn = 0;
        let forth_and_back = same_twice(|tell| {
            turn += 1;
            let times: [u64; 3] = if turn == 1 { [1, 2, 3] } else { [3, 1, 2] };
            times.into_iter().for_each(|time| tell(event(time, 0)));
        });
        assert_eq!(forth_and_back, same_twice(|tell| [2, 1, 3].into_iter().for_each(|t| tell(event(t, 0)))));
        assert_ne!(forth_and_back, same_twice(|tell| [1, 2, 4].into_iter().for_each(|t| tell(event(t, 0)))));
    }

    #[test]
    fn messages_hash_alike_in_any_order_and_everything_else_shows() {
        let hash = |messages: &[(u32, u64)]| {
            let mut hash = EventHash::default();
            messages.iter().for_each(|&(rank, time)| hash.message(rank, time));
            hash
        };
        let run = hash(&[(0, 5), (1, 5), (0, 9)]);
        assert_eq!(run, hash(&[(0, 9), (0, 5), (1, 5)]));
        assert_ne!(run, hash(&[(0, 5), (1, 9), (0, 5)]));
        assert_ne!(run, hash(&[(0, 5), (1, 5), (0, 10)]));
        assert_ne!(run, hash(&[(0, 5), (1, 5)]));
    }

    #[test]
    fn the_first_event_that_differs_is_named() {
        let mut turn = 0;
        let error = same_twice(|tell| {
            turn += 1;
            tell(event(5, 0));
            tell(event(7, turn));
        });
        let error = error.unwrap_err();
        assert_eq!((error.index, error.first, error.second), (1, Some(event(7, 1)), Some(event(7, 2))));
        assert!(error.to_string().contains("at event 1: the first run has 7 ps, rank 1"), "{error}");
        let mut turn = 0;
        let shorter = same_twice(|tell| {
            turn += 1;
            (turn == 1).then(|| tell(event(5, 0)));
        });
        assert_eq!(shorter.unwrap_err().second, None);
    }
}
