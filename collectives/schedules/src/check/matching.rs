//! Checks that every send has exactly one receive of the same size in the same round and lane, and every receive one send.
//!
//! A rank sends at most one message and receives at most one in a round, so it is enough to find the other half of each message at
//! the peer. The check is local: any round of a schedule for 100,000 ranks can be checked alone.

use super::{Counterexample, walk};
use crate::schedule::{Rank, Schedule, Span, Step};
use crate::{Collective, Geometry};

/// Checks that all messages of all rounds match.
///
/// # Errors
/// The first send or receive without its counterpart, or with a peer, chunk, segment or lane that does not exist.
pub fn matching(schedule: &(impl Schedule + ?Sized), collective: Collective) -> Result<(), Counterexample> {
    let checker = Checker::new(schedule, collective);
    walk(schedule, |round, acting| {
        acting.iter().try_for_each(|(rank, step)| checker.step(*rank, round, step))
    })
}

/// Checks that the messages of the given ranks in one round match.
///
/// # Errors
/// The errors of [`matching`].
pub fn matching_round(
    schedule: &(impl Schedule + ?Sized),
    collective: Collective,
    round: u64,
    ranks: impl IntoIterator<Item = Rank>,
) -> Result<(), Counterexample> {
    let checker = Checker::new(schedule, collective);
    ranks.into_iter().try_for_each(|rank| checker.step(rank, round, &schedule.step(rank, round)))
}

struct Checker<'a, S: ?Sized> {
    schedule: &'a S,
    ranks: u32,
    /// Geometries of several element counts, most of which the number of chunks does not divide, so that chunks differ in size.
    buffers: Vec<Geometry>,
}

impl<'a, S: Schedule + ?Sized> Checker<'a, S> {
    fn new(schedule: &'a S, collective: Collective) -> Checker<'a, S> {
        let chunks = u64::from(schedule.chunks());
        let counts = [1, chunks - 1, chunks + 1, 7 * chunks + chunks / 2, 1009];
        let cut = |count| match collective.blocked() {
            true => Geometry::blocked(schedule, count),
            false => Geometry::whole(schedule, count),
        };
        Checker { schedule, ranks: schedule.ranks(), buffers: counts.map(cut).into() }
    }

    fn step(&self, rank: Rank, round: u64, step: &Step) -> Result<(), Counterexample> {
        let fail =
            |chunk: Option<u32>, what: String| Err(Counterexample { rank, round: Some(round), chunk, what });
        let lane = self.schedule.lane(round);
        if lane >= self.schedule.lanes() {
            return fail(None, format!("is in lane {lane}; lanes must be below {}", self.schedule.lanes()));
        }
        let sends = step.send.map(|(peer, span)| (peer, span, "sends to"));
        let receives = step.recv.map(|(peer, span, _)| (peer, span, "receives from"));
        for (peer, span, does) in [sends, receives].into_iter().flatten() {
            if peer.0 >= self.ranks {
                return fail(
                    Some(span.first_chunk),
                    format!("{does} rank {peer}, but the last rank is {}", self.ranks - 1),
                );
            }
            let end = u64::from(span.first_chunk) + u64::from(span.chunks);
            if span.chunks == 0
                || end > u64::from(self.schedule.chunks())
                || span.segment >= self.schedule.segments()
            {
                let (chunks, segments) = (self.schedule.chunks(), self.schedule.segments());
                return fail(
                    Some(span.first_chunk),
                    format!(
                        "{does} rank {peer} {span}, and the schedule has chunks 0 to {} and segments 0 to {}",
                        chunks - 1,
                        segments - 1
                    ),
                );
            }
        }
        if let Some((peer, span)) = step.send {
            match self.schedule.step(peer, round).recv {
                Some((from, into, _)) if from == rank => self.sizes(rank, round, span, peer, into)?,
                other => {
                    let does =
                        other.map_or("receives nothing".into(), |(from, ..)| format!("receives from {from}"));
                    return fail(
                        Some(span.first_chunk),
                        format!("sends to rank {peer}, which {does} in this round"),
                    );
                }
            }
        }
        if let Some((peer, span, _)) = step.recv {
            let theirs = self.schedule.step(peer, round).send;
            if theirs.is_none_or(|(to, _)| to != rank) {
                let does = theirs.map_or("sends nothing".into(), |(to, _)| format!("sends to {to}"));
                return fail(
                    Some(span.first_chunk),
                    format!("receives from rank {peer}, which {does} in this round"),
                );
            }
        }
        Ok(())
    }

    fn sizes(&self, rank: Rank, round: u64, sent: Span, peer: Rank, got: Span) -> Result<(), Counterexample> {
        let fail = |what: String| {
            Err(Counterexample { rank, round: Some(round), chunk: Some(sent.first_chunk), what })
        };
        if (sent.chunks, sent.segment) != (got.chunks, got.segment) {
            return fail(format!("sends {sent:?}, but rank {peer} expects {got:?}"));
        }
        let size = |buffer: &Geometry, chunk| {
            let piece = buffer.piece(chunk, sent.segment);
            piece.end - piece.start
        };
        let differ = |buffer: &&Geometry| {
            (0..sent.chunks).any(|i| size(buffer, sent.first_chunk + i) != size(buffer, got.first_chunk + i))
        };
        match self.buffers.iter().find(|buffer| sent.first_chunk != got.first_chunk && differ(buffer)) {
            None => Ok(()),
            Some(buffer) => fail(format!(
                "sends chunks {} + {} into chunks {} + {} of rank {peer}, whose sizes differ in a buffer of {} elements",
                sent.first_chunk,
                sent.chunks,
                got.first_chunk,
                got.chunks,
                buffer.count()
            )),
        }
    }
}
