//! What fault rules do to a run beside making ranks and links slower once and for all: weather, lost and late messages,
//! deaths, and who is to blame where a rank cannot finish.
//!
//! ```text
//! rank 5 waits for rank 4, which waits for rank 3, which waits for the message from 2 that was lost: the way from 2 to 3
//! ```
//!
//! A run without such rules has none of this and pays nothing for it.

use super::agenda::{Agenda, Due};
use super::window::NONE;
use super::{Cast, Error, Events, Job};
use crate::{Cause, Culprit, Failure};
use allfold_schedules::schedule::{Rank, Step};
use allfold_sim::fault::{Death, Message};
use allfold_sim::{BytesPerSec, LinkId, Picos};
use std::collections::{BTreeMap, BTreeSet};

/// The faults of a run, as they come.
pub(super) struct Trouble {
    /// When bandwidths or gates change next.
    change: Option<Picos>,
    /// The last instant at which anything else was due.
    since: Picos,
    /// The links whose bandwidth changes, and what it is without rules that have a time.
    changing: Vec<(LinkId, BytesPerSec)>,
    touches_messages: bool,
    /// Messages that have started, by sender and receiver.
    counts: BTreeMap<(Rank, Rank), u64>,
    /// What becomes of each message under way, by its number.
    fates: Vec<Fate>,
    /// When the last message of each channel arrives: those behind it arrive no sooner.
    arrivals: Vec<u64>,
    /// When each actor died, where it did.
    dead: Vec<Option<u64>>,
}

/// What becomes of one message.
#[derive(Clone, Copy, Default)]
struct Fate {
    dropped: bool,
    corrupted: bool,
    duplicated: bool,
    /// The second of a message that is sent twice.
    copy: bool,
    /// Its last byte is on its way.
    left: bool,
    /// How much later it arrives.
    late: u64,
}

impl Trouble {
    pub(super) fn new(job: &Job<'_>, cast: &impl Cast, agenda: &mut Agenda) -> Option<Box<Trouble>> {
        let faults = job.faults;
        if faults.is_steady() {
            return None;
        }
        for actor in 0..cast.actors() {
            if let Some(Death::At(at)) = faults.death(cast.rank(actor)) {
                agenda.after(0, at.0, Due::Die(actor));
            }
        }
        let changing = faults.changing().into_iter().map(|link| (link, cast.link(link).bandwidth));
        Some(Box::new(Trouble {
            change: (faults.gates() > 0 || !faults.changing().is_empty()).then_some(Picos::ZERO),
            since: Picos::ZERO,
            changing: changing.collect(),
            touches_messages: faults.touch_messages(),
            counts: BTreeMap::new(),
            fates: Vec::new(),
            arrivals: Vec::new(),
            dead: vec![None; cast.actors() as usize],
        }))
    }
}

impl<C: Cast> Events<'_, '_, C> {
    /// The next instant, where bandwidths change with time. Flows that stand still for ever do not keep a run going.
    pub(super) fn next_in_trouble(&mut self, next: Option<u64>) -> Option<u64> {
        let Some(trouble) = &mut self.trouble else { return next };
        match (next, trouble.change) {
            (Some(next), Some(change)) => {
                trouble.since = Picos(next.min(change.0));
                Some(trouble.since.0)
            }
            (None, Some(change)) => {
                let waits = change <= self.job.faults.settled(trouble.since) && self.network.has_flows();
                waits.then_some(change.0)
            }
            (next, None) => next,
        }
    }

    /// Gives links the bandwidth that they have from now on.
    pub(super) fn weather(&mut self, now: u64) {
        let (faults, now) = (self.job.faults, Picos(now));
        let Some(trouble) =
            self.trouble.as_mut().filter(|trouble| trouble.change.is_some_and(|at| at <= now))
        else {
            return;
        };
        trouble.change = faults.change(now);
        for &(link, steady) in &trouble.changing {
            self.network.set_bandwidth(link, faults.bandwidth(link, steady, now));
        }
        for gate in 0..faults.gates() {
            let open = BytesPerSec(if faults.is_open(gate, now) { u64::MAX } else { 0 });
            self.network.set_bandwidth(LinkId(self.cast.links() + gate), open);
        }
    }

    /// A message's fate, decided when it starts.
    pub(super) fn judge(&mut self, now: u64, number: u32) {
        let message = &self.messages[number as usize];
        let (from, to) = self.ends(number);
        let Some(trouble) = &mut self.trouble else { return };
        let mut fate = Fate::default();
        if trouble.touches_messages {
            let nth = trouble.counts.entry((from, to)).or_default();
            *nth += 1;
            let asked = Message { from, to, operation: 0, round: message.round, nth: *nth, at: Picos(now) };
            let verdict = self.job.faults.verdict(&asked);
            self.path.clear();
            self.cast.route(from, to, &mut self.path);
            let on_links = self.path.iter().map(|crossing| self.job.faults.lateness(crossing.link, &asked));
            let late =
                on_links.fold(verdict.delay + verdict.held.unwrap_or_default(), |sum, late| sum + late);
            fate = Fate {
                dropped: verdict.dropped,
                corrupted: verdict.corrupted.is_some(),
                duplicated: verdict.duplicated,
                late: late.0,
                ..Fate::default()
            };
        }
        trouble.set_fate(number, fate);
    }

    fn fate(&self, number: u32) -> Fate {
        self.trouble
            .as_ref()
            .and_then(|trouble| trouble.fates.get(number as usize))
            .copied()
            .unwrap_or_default()
    }

    /// What a message's sender spends on it before the first byte, by the clock.
    pub(super) fn overhead_from(&self, now: u64, sender: u32) -> u64 {
        let overhead = self.overhead(sender);
        match &self.trouble {
            None => overhead,
            Some(_) => {
                let rank = self.cast.rank(self.windows.actor(sender));
                self.job.faults.takes(rank, Picos(now), Picos(overhead)).0
            }
        }
    }

    /// How long after it has left a message arrives.
    pub(super) fn later(&self, number: u32, delay: u64) -> u64 {
        delay.saturating_add(self.fate(number).late)
    }

    /// Whether a message that has left arrives at all; it arrives after those before it in its channel. Where it is sent
    /// twice the copy follows at once.
    pub(super) fn will_arrive(&mut self, now: u64, number: u32, delay: &mut u64) -> bool {
        let fate = self.fate(number);
        if fate.duplicated {
            self.send_copy(now, number);
        }
        let channel = self.messages[number as usize].channel as usize;
        let Some(trouble) = &mut self.trouble else { return true };
        trouble.set_fate(number, Fate { left: true, ..fate });
        if fate.dropped {
            return false;
        }
        if trouble.arrivals.len() <= channel {
            trouble.arrivals.resize(channel + 1, 0);
        }
        let last = &mut trouble.arrivals[channel];
        *last = (*last).max(now.saturating_add(*delay));
        *delay = *last - now;
        true
    }

    /// The second of a message that is sent twice takes its channel and its links once more.
    fn send_copy(&mut self, now: u64, number: u32) {
        let message = self.messages[number as usize];
        self.messages.push(message);
        let copy = self.messages.len() as u32 - 1;
        let channel = self.channels.get_mut(message.channel);
        channel.busy = true;
        channel.under_way += 1;
        if let Some(trouble) = &mut self.trouble {
            trouble.set_fate(copy, Fate { copy: true, ..Fate::default() });
        }
        self.flow(now, copy);
    }

    /// Whether what has left is a copy, which the receiver drops.
    pub(super) fn was_copy(&mut self, number: u32) -> bool {
        let copy = self.fate(number).copy;
        if copy {
            let channel = self.channels.get_mut(self.messages[number as usize].channel);
            channel.busy = false;
            channel.under_way -= 1;
            self.free_messages.push(number);
        }
        copy
    }

    pub(super) fn is_corrupted(&self, number: u32) -> bool {
        self.fate(number).corrupted
    }

    /// A message whose checksum does not match: its receiver fails the operation at once.
    pub(super) fn damaged(&self, now: u64, number: u32) -> Error {
        let (from, to) = self.ends(number);
        let round = self.messages[number as usize].round;
        let culprit = Culprit::Way { from, to };
        Error::Fault(Box::new(Failure {
            culprit,
            cause: Cause::Corrupted,
            told: to,
            round,
            at: Some(Picos(now)),
        }))
    }

    /// An actor dies: what it has not sent never leaves, what it has not received never arrives.
    pub(super) fn die(&mut self, now: u64, actor: u32) {
        if self.is_finished(actor) || self.is_dead(actor) {
            return;
        }
        if let Some(trouble) = &mut self.trouble {
            trouble.dead[actor as usize] = Some(now);
        }
        let torn: Vec<_> =
            self.network.flows().filter(|flow| self.touches_dead(self.carried[flow.0 as usize])).collect();
        torn.into_iter().for_each(|flow| self.network.cancel(Picos(now), flow));
    }

    /// Whether an actor is dead when it comes to a step: the one before which it is to die, or a later one.
    pub(super) fn dies_before(&mut self, now: u64, slot: u32) -> bool {
        let actor = self.windows.actor(slot);
        if let Some(Death::In { operation: 0, round }) = self.job.faults.death(self.cast.rank(actor))
            && self.windows.round(slot) >= round
        {
            self.die(now, actor);
        }
        self.is_dead(actor)
    }

    pub(super) fn is_dead(&self, actor: u32) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.dead[actor as usize].is_some())
    }

    /// Whether one end of a channel is dead.
    pub(super) fn is_cut_off(&self, channel: u32) -> bool {
        let (from, to, _) = self.channels.get(channel).key;
        self.is_dead(from) || self.is_dead(self.cast.actor(Rank(to)))
    }

    /// Whether one end of a message is dead.
    pub(super) fn touches_dead(&self, message: u32) -> bool {
        self.is_cut_off(self.messages[message as usize].channel)
    }

    /// Whether the deadline has passed and some survivor is not done.
    pub(super) fn is_late(&self, now: u64) -> bool {
        let open = |actor| !self.is_finished(actor) && !self.is_dead(actor);
        self.job.deadline.is_some_and(|deadline| now > deadline.0) && (0..self.cast.actors()).any(open)
    }

    /// Sender and receiver of a message.
    fn ends(&self, number: u32) -> (Rank, Rank) {
        let (from, to, _) = self.channels.get(self.messages[number as usize].channel).key;
        (self.cast.rank(from), Rank(to))
    }

    /// Why survivors cannot finish: from one of them along what each waits for, to what waits for nobody.
    pub(super) fn failure(&self) -> Error {
        let open = |actor: &u32| !self.is_finished(*actor) && !self.is_dead(*actor);
        let Some(mut actor) = (0..self.cast.actors()).find(open) else { return self.deadlock(0) };
        let mut round = 0;
        for _ in 0..self.cast.actors() {
            let told = self.cast.rank(actor);
            let failed = |culprit, cause, round, at| {
                Error::Fault(Box::new(Failure { culprit, cause, told, round, at }))
            };
            if self.windows.is_empty(actor) {
                return failed(Culprit::Rank(told), Cause::Late, round, self.job.deadline);
            }
            let slot = self.windows.oldest(actor);
            round = self.windows.round(slot);
            let peer = match self.waits_for(slot, told, round) {
                Wait::Peer(peer) => self.cast.actor(peer),
                Wait::Message(from, to, cause) => {
                    let died =
                        |actor: u32| self.trouble.as_ref().and_then(|trouble| trouble.dead[actor as usize]);
                    let (source, sink) = (self.cast.actor(from), self.cast.actor(to));
                    for (end, rank) in [(source, from), (sink, to)] {
                        if let Some(at) = died(end) {
                            let at = Picos(at);
                            return failed(Culprit::Rank(rank), Cause::Died(at), round, Some(at));
                        }
                    }
                    return failed(Culprit::Way { from, to }, cause, round, self.job.deadline);
                }
                Wait::Itself => return failed(Culprit::Rank(told), Cause::Late, round, self.job.deadline),
            };
            if let Some(at) = self.trouble.as_ref().and_then(|trouble| trouble.dead[peer as usize]) {
                let at = Picos(at);
                return failed(Culprit::Rank(self.cast.rank(peer)), Cause::Died(at), round, Some(at));
            }
            actor = peer;
        }
        self.deadlock(actor)
    }

    /// What the oldest step of a rank waits for.
    fn waits_for(&self, slot: u32, rank: Rank, round: u64) -> Wait {
        let of = |message: &super::Message| message.sender == slot || message.receiver == slot;
        let idle: BTreeSet<u32> = self.free_messages.iter().copied().collect();
        let under_way = (0u32..).zip(&self.messages).find(|(number, message)| {
            let half = if message.sender == slot { !self.fate(*number).left } else { true };
            !idle.contains(number) && of(message) && half
        });
        let step = self.job.schedule.step(rank, round);
        if let Some((number, _)) = under_way {
            let (from, to) = self.ends(number);
            let fate = self.fate(number);
            let stands = |flow: allfold_sim::FlowId| {
                self.carried[flow.0 as usize] == number && self.network.rate(flow) == BytesPerSec(0)
            };
            let cause = match () {
                () if fate.dropped => Cause::Lost,
                () if self.network.flows().any(stands) => Cause::Apart,
                () => Cause::Late,
            };
            return Wait::Message(from, to, cause);
        }
        let queued = |channel: u32, receives: bool| {
            channel != NONE && {
                let channel = self.channels.get(channel);
                if receives { channel.receives.0 == slot } else { channel.sends.0 == slot }
            }
        };
        let half = &self.windows.slots[slot as usize];
        match step {
            Step { recv: Some((from, ..)), .. } if from != rank && queued(half.receive.channel, true) => {
                Wait::Peer(from)
            }
            Step { send: Some((to, _)), .. } if to != rank && queued(half.send.channel, false) => {
                Wait::Peer(to)
            }
            _ => Wait::Itself,
        }
    }
}

/// What a step waits for.
enum Wait {
    /// A rank that has not posted its half.
    Peer(Rank),
    /// A message under way.
    Message(Rank, Rank, Cause),
    /// Time of its own.
    Itself,
}

impl Trouble {
    fn set_fate(&mut self, number: u32, fate: Fate) {
        let number = number as usize;
        if self.fates.len() <= number {
            self.fates.resize(number + 1, Fate::default());
        }
        self.fates[number] = fate;
    }
}
