//! Skips the repeating part of a pipeline's simulation, with exact results.
//!
//! ```text
//! pieces done by one rank   | 40 | 41 | 42 | 43 |   ...   | 980 | 981 |
//! state, relative to them     x    A    B    A' = A: 470 times the same two pieces, then stepped as usual
//! ```
//!
//! The state of a run is everything that the future depends on: the steps in flight, their dependencies, messages with their due
//! times, and flows with their remaining bytes. Relative to the current time and to the current piece of one rank, the *reference*,
//! the state often recurs after a few pieces. Everything then repeats until the pieces change size or end, so whole periods can be
//! added to times, counters and piece numbers.
//!
//! A recurrence is guessed from the time between the reference's pieces, by R. Brent's method ("An improved Monte Carlo
//! factorization algorithm", BIT 20 (1980)). It is confirmed by a hash of the whole state, computed twice, one period apart. For a
//! state that does not recur, the search costs little and changes nothing.

use super::super::Representatives;
use super::engine::{Events, LAST};
use super::event_queue::ScheduledEvent;
use super::window::{NONE, Slot};
use allfold_sim::hash::{GOLDEN, finalize};
use allfold_sim::network::Usage;
use allfold_sim::{LinkId, Picos};
use std::collections::BTreeSet;

/// The state of the search for a repeating pattern.
#[derive(Default)]
pub(super) struct Skip {
    reference: u32,
    /// The first piece of every range of pieces of equal size, followed by the number of pieces.
    stretches: Vec<u64>,
    /// The reference's oldest unfinished piece, and the time since which that piece is the oldest.
    piece: u64,
    since: u64,
    /// The number of the reference's pieces so far; the piece that Brent's method saved; that piece's duration.
    seen: u64,
    saved: u64,
    saved_took: u64,
    candidate: Option<Candidate>,
    /// The piece before which no candidate is taken, and the number of pieces to wait after the next failed candidate.
    quiet: u64,
    wait: u64,
    /// The number of periods that were skipped, for tests.
    pub(super) periods: u64,
}

/// A state that may occur again.
struct Candidate {
    /// The reference's piece count at which the state is compared again.
    ends: u64,
    state: State,
    usage: Vec<Usage>,
    messages: u64,
    bytes: u64,
}

/// The state of a run, relative to the reference's time and piece.
#[derive(Clone, Copy)]
struct State {
    now: u64,
    piece: u64,
    hash: u64,
    /// The times for messages without bytes: the time of the reference, and a hash of all other times relative to it.
    chain: u64,
    chains: u64,
    /// The first piece that some rank has not finished, and one past the last piece that any rank has begun.
    first: u64,
    end: u64,
}

impl Skip {
    /// The start of a search; `None` if the job is not a pipeline with enough pieces.
    pub(super) fn new<C: Representatives>(events: &Events<'_, '_, C>) -> Option<Skip> {
        let pieces = events.programs.pieces().filter(|pieces| *pieces > 8)?;
        let geometry = events.job.geometry;
        let mut stretches = BTreeSet::from([0, pieces]);
        for chunk in 0..events.job.schedule.chunks() {
            let chunk = geometry.chunk(chunk);
            stretches.insert((chunk.end - chunk.start) % pieces);
        }
        let reference = (0..events.cast.representatives())
            .find(|&representative| events.programs.has_steps(representative))?;
        Some(Skip {
            reference,
            stretches: stretches.into_iter().collect(),
            piece: u64::MAX,
            wait: 1,
            ..Skip::default()
        })
    }

    /// Called when all events of time `now` are processed. Compares states whenever the reference has finished a piece.
    pub(super) fn look<C: Representatives>(&mut self, now: u64, events: &mut Events<'_, '_, C>) {
        if events.windows.is_empty(self.reference) {
            return;
        }
        let oldest = events.windows.oldest(self.reference);
        let piece = u64::from(events.windows.slots[oldest].segment);
        if piece == self.piece {
            return;
        }
        let took = now - std::mem::replace(&mut self.since, now);
        self.piece = piece;
        self.seen += 1;
        match self.candidate.take_if(|candidate| candidate.ends == self.seen) {
            Some(candidate) => self.skip_if_repeated(now, events, candidate),
            None => self.search(now, took, events),
        }
    }

    /// Brent's method: the duration of a piece is saved at every power of two, and later durations are compared with it.
    fn search<C: Representatives>(&mut self, now: u64, took: u64, events: &Events<'_, '_, C>) {
        let again = took == self.saved_took && self.seen > self.saved;
        if again && self.candidate.is_none() && self.seen >= self.quiet {
            let Some(state) = State::of(now, self.piece, self.reference, events) else { return };
            let links = 0..events.cast.links();
            self.candidate = Some(Candidate {
                ends: self.seen + (self.seen - self.saved),
                state,
                usage: links.map(|link| events.transit.network.usage(LinkId(link), Picos(now))).collect(),
                messages: events.run.messages,
                bytes: events.run.bytes,
            });
        }
        if self.seen.is_power_of_two() || again {
            (self.saved, self.saved_took) = (self.seen, took);
        }
    }

    /// Skips ahead if the candidate's state has occurred again.
    fn skip_if_repeated<C: Representatives>(
        &mut self,
        now: u64,
        events: &mut Events<'_, '_, C>,
        before: Candidate,
    ) {
        let state = State::of(now, self.piece, self.reference, events);
        let Some(state) = state.filter(|state| state.hash == before.state.hash) else {
            self.quiet = self.seen + self.wait;
            self.wait = (self.wait * 2).min(64);
            return;
        };
        let (pieces, span) = (state.piece - before.state.piece, now - before.state.now);
        let at = self.stretches.partition_point(|&first| first <= before.state.first);
        let end = self.stretches.get(at).copied().unwrap_or(0);
        let most = end.saturating_sub(state.end + 1).checked_div(pieces).unwrap_or(0);
        let fits = (LAST - now).checked_div(span).unwrap_or(0);
        let times = most.min(fits);
        if times == 0 || state.end >= end {
            return;
        }
        self.periods += times;
        let chain = if state.chains == before.state.chains { state.chain - before.state.chain } else { 0 };
        let jump = Jump { pieces: pieces * times, span: span * times, chain: chain * times };
        for (link, old) in before.usage.iter().enumerate() {
            let new = events.transit.network.usage(LinkId(link as u32), Picos(now));
            let (bytes, busy) = ((new.bytes - old.bytes) * times, Picos((new.busy.0 - old.busy.0) * times));
            events.transit.network.credit(LinkId(link as u32), Usage { bytes, busy });
        }
        let skipped = (events.run.messages - before.messages) * times;
        events.run.messages += skipped;
        events.run.skipped += skipped;
        events.run.bytes += (events.run.bytes - before.bytes) * times;
        events.hash.repeated(times, span);
        jump.apply(events);
        self.piece += jump.pieces;
        self.since += jump.span;
    }
}

/// The amounts that a skip adds to every time and every number.
struct Jump {
    pieces: u64,
    span: u64,
    chain: u64,
}

impl Jump {
    fn apply<C: Representatives>(&self, events: &mut Events<'_, '_, C>) {
        let rounds = events.programs.jump(self.pieces);
        events.windows.jump(self.pieces as u32, rounds, self.chain);
        for representative in 0..events.cast.representatives() {
            if events.programs.has_steps(representative) {
                events.windows.states[representative as usize].finish += self.span;
            }
        }
        events.channels.shift_chains(self.chain);
        events.event_queue.shift(self.span);
        events.transit.network.shift(Picos(self.span));
        for message in events.transit.messages_mut() {
            message.flow += Picos(self.span);
            message.of.start += self.span;
            message.of.left += self.span;
            message.of.chain += self.chain;
        }
    }
}

impl State {
    /// The current state relative to the reference; `None` if some rank is not launched yet or has begun its last piece.
    fn of<C: Representatives>(
        now: u64,
        piece: u64,
        reference: u32,
        events: &Events<'_, '_, C>,
    ) -> Option<State> {
        let chain = events.windows.states[reference as usize].chain;
        let mut hash = Relative { piece, lap: events.programs.lap(), chain, sum: 0, chains: 0 };
        let (mut first, mut end) = (u64::MAX, 0);
        for representative in 0..events.cast.representatives() {
            for next in events.programs.begun(representative) {
                end = end.max(next?);
                hash.add(&[1, representative.into(), next?.wrapping_sub(piece)]);
            }
            let state = &events.windows.states[representative as usize];
            hash.chain(&[representative.into()], state.chain);
            for number in state.base..state.head {
                let slot = events.windows.slot_of(representative, number);
                let ident = [2, representative.into(), number - state.base];
                if events.windows.is_done(slot) {
                    hash.add(&ident);
                    continue;
                }
                let step = &events.windows.slots[slot];
                first = first.min(step.segment.into());
                let phase = u64::from(step.open) << 1 | u64::from(events.windows.is_posted(slot));
                let round = hash.step(events.windows.round(slot), step);
                hash.add(&[ident[0], ident[1], ident[2], round, phase]);
                hash.chain(&[3, ident[1], ident[2]], step.posted_chain);
                hash.chain(&[4, ident[1], ident[2]], step.done_chain);
            }
        }
        let named = |hash: &Relative, slot: u32| match slot {
            NONE => u64::MAX,
            slot => hash.step(events.windows.round(slot), &events.windows.slots[slot]),
        };
        for channel in events.channels.in_use() {
            let (from, to, lane) = channel.key;
            let (sends, receives) = (named(&hash, channel.sends.0), named(&hash, channel.receives.0));
            let key = [5, u64::from(from) << 32 | u64::from(to), lane.into()];
            hash.add(&[key[0], key[1], key[2], sends, receives, channel.busy.into()]);
            hash.chain(&key, channel.chain);
        }
        let message = |hash: &mut Relative, kind: u64, number: u32, due: u64| {
            let message = events.transit.get(number);
            let (from, to, lane) = events.channels.get(message.channel).key;
            let ends = u64::from(from) << 32 | u64::from(to);
            let receiver = named(hash, message.of.receiver);
            let words =
                [kind, ends, lane.into(), receiver, message.bytes.0, due, now.wrapping_sub(message.flow.0)];
            hash.add(&words);
            hash.chain(&[kind, ends, lane.into(), receiver], message.of.chain);
        };
        for (at, due) in events.event_queue.iter() {
            match due {
                ScheduledEvent::Launch(_) | ScheduledEvent::Die(_) => return None,
                ScheduledEvent::Flow(number) => message(&mut hash, 6, number, at - now),
                ScheduledEvent::Arrive(number) => message(&mut hash, 7, number, at - now),
                ScheduledEvent::Local(slot) => {
                    let step = named(&hash, slot);
                    hash.add(&[8, events.windows.representative(slot).into(), step, at - now]);
                }
            }
        }
        for flow in events.transit.network.flows() {
            let remaining = events.transit.network.remaining(flow, Picos(now));
            let number = events.transit.carried(flow);
            message(&mut hash, 9, number, remaining as u64);
            hash.add(&[10, (remaining >> 64) as u64]);
        }
        Some(State { now, piece, hash: hash.sum, chain, chains: hash.chains, first, end })
    }
}

/// An order-independent hash of a set of words.
struct Relative {
    piece: u64,
    lap: u64,
    chain: u64,
    sum: u64,
    chains: u64,
}

impl Relative {
    fn add(&mut self, words: &[u64]) {
        self.sum = self.sum.wrapping_add(mixed(words));
    }

    /// Adds a time for messages without bytes, relative to the reference's; a time of 0 was never set.
    fn chain(&mut self, what: &[u64], chain: u64) {
        let relative = if chain == 0 { u64::MAX / 2 } else { chain.wrapping_sub(self.chain) };
        self.chains = self.chains.wrapping_add(mixed(&[mixed(what), relative]));
    }

    /// A hash of a step: its round relative to its piece, and its piece relative to the reference's.
    fn step(&self, round: u64, step: &Slot) -> u64 {
        let piece = u64::from(step.segment);
        mixed(&[round - piece * self.lap, piece.wrapping_sub(self.piece)])
    }
}

fn mixed(words: &[u64]) -> u64 {
    words.iter().fold(GOLDEN, |before, word| finalize(before ^ word))
}
