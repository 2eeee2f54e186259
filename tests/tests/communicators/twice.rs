//! Runs a program twice and names the first event that differs.
//!
//! Events at the same time are ordered by (rank, stream, sequence). The order in which threads report them never matters.

use allfold_collectives::Rank;
use allfold_sim::Picos;
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

/// The first difference between two runs that should have been the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// How many events before the difference are the same in both runs.
    pub index: usize,
    /// The first run's event; `None` if the run had ended.
    pub first: Option<Event>,
    /// The second run's event; `None` if the run had ended.
    pub second: Option<Event>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |event: &Option<Event>| event.as_ref().map_or("nothing".into(), Event::to_string);
        let Divergence { index, first, second } = self;
        let (first, second) = (named(first), named(second));
        write!(f, "two runs differ at event {index}: the first run has {first}, the second has {second}")
    }
}

/// Calls `run` twice and returns its events, in order. `run` reports its events to its argument, in any order.
///
/// # Errors
/// The first event, in the order of events, that differs between the two runs.
pub fn same_twice(mut run: impl FnMut(&mut dyn FnMut(Event))) -> Result<Vec<Event>, Divergence> {
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
    Ok(first)
}

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
