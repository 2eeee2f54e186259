//! The effect over time of fault rules other than permanent slowdowns: changing bandwidths, messages that are lost, damaged,
//! duplicated or late, and ranks that die.

use crate::fault::Message;
use crate::{BytesPerSec, Faults, FlowNetwork, LinkId, Picos, Rank};
use std::collections::BTreeMap;

/// The effect of the fault rules on one message, decided when the message starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageFault {
    /// Whether the message is lost.
    pub dropped: bool,
    /// The bit of the message that is flipped, modulo the number of bits; `None` for an intact message.
    pub corrupted: Option<u64>,
    /// Whether the message is sent twice.
    pub duplicated: bool,
    /// Whether this is the second copy of a message that is sent twice; the receiver drops the second copy.
    pub copy: bool,
    /// Whether the message's last byte has left.
    pub left: bool,
    /// How much later the message arrives.
    pub late: Picos,
}

/// The state of fault rules that change over time. A run without such rules has no such state and no cost for it.
#[derive(Clone, Debug)]
pub struct FaultState {
    /// When a bandwidth or a gate changes next.
    change: Option<Picos>,
    /// The latest time that the run reached while events other than changes of bandwidths and gates were pending.
    since: Picos,
    /// The links whose bandwidth changes, with their bandwidth when no timed rule applies.
    changing: Vec<(LinkId, BytesPerSec)>,
    /// The number of links of the topology; gates have the numbers after them.
    links: u32,
    touches_messages: bool,
    /// The number of messages that have started, by sender and receiver.
    started: BTreeMap<(Rank, Rank), u64>,
    /// The fault effects on each message under way, by message number.
    messages: Vec<MessageFault>,
    /// When the last message of each channel arrives; later messages of the channel arrive no sooner.
    arrivals: Vec<Picos>,
    /// When each rank died; `None` for a rank that is alive.
    deaths: Vec<Option<Picos>>,
}

impl FaultState {
    /// The state at the start of a run. `links` are the bandwidths of the topology's links under the steady rules. `None` if all
    /// rules are steady.
    pub fn new(faults: &Faults, links: &[BytesPerSec], ranks: u32) -> Option<FaultState> {
        if faults.is_steady() {
            return None;
        }
        let changing: Vec<_> =
            faults.changing().into_iter().map(|link| (link, links[link.0 as usize])).collect();
        Some(FaultState {
            change: (faults.gates() > 0 || !changing.is_empty()).then_some(Picos::ZERO),
            since: Picos::ZERO,
            changing,
            links: links.len() as u32,
            touches_messages: faults.touch_messages(),
            started: BTreeMap::new(),
            messages: Vec::new(),
            arrivals: Vec::new(),
            deaths: vec![None; ranks as usize],
        })
    }

    /// The next instant at which a bandwidth or a gate changes or, at `next`, another event is due. Flows that will never progress
    /// again do not prolong a run.
    pub(super) fn next(
        &mut self,
        faults: &Faults,
        next: Option<Picos>,
        network: &FlowNetwork,
    ) -> Option<Picos> {
        match (next, self.change) {
            (Some(next), Some(change)) => {
                self.since = next.min(change);
                Some(self.since)
            }
            (None, Some(change)) => {
                let waits = change <= faults.settled(self.since) && network.has_flows();
                waits.then_some(change)
            }
            (next, None) => next,
        }
    }

    /// Sets the bandwidths that links have from `now` on.
    pub(super) fn set_bandwidths(&mut self, faults: &Faults, now: Picos, network: &mut FlowNetwork) {
        if self.change.is_none_or(|at| at > now) {
            return;
        }
        self.change = faults.change(now);
        for &(link, steady) in &self.changing {
            network.set_bandwidth(link, faults.bandwidth(link, steady, now));
        }
        for gate in 0..faults.gates() {
            let open = BytesPerSec(if faults.is_open(gate, now) { u64::MAX } else { 0 });
            network.set_bandwidth(LinkId(self.links + gate), open);
        }
    }

    /// Whether any rule affects single messages.
    pub fn touches_messages(&self) -> bool {
        self.touches_messages
    }

    /// Decides the fault effects on message `number`, which starts now over `path` and is the next from its sender to its receiver.
    pub fn decide(
        &mut self,
        faults: &Faults,
        number: u32,
        message: Message,
        path: impl Iterator<Item = LinkId>,
    ) {
        let mut fault = MessageFault::default();
        if self.touches_messages {
            let nth = self.started.entry((message.from, message.to)).or_default();
            *nth += 1;
            let message = Message { nth: *nth, ..message };
            let verdict = faults.verdict(&message);
            let late = verdict.delay + verdict.held.unwrap_or_default();
            fault = MessageFault {
                dropped: verdict.dropped,
                corrupted: verdict.corrupted,
                duplicated: verdict.duplicated,
                late: path.fold(late, |sum, link| sum + faults.lateness(link, &message)),
                ..fault
            };
        }
        *self.message_mut(number) = fault;
    }

    /// The fault effects on message `number`, which is under way.
    pub fn message(&self, number: u32) -> MessageFault {
        self.messages.get(number as usize).copied().unwrap_or_default()
    }

    pub(super) fn message_mut(&mut self, number: u32) -> &mut MessageFault {
        let number = number as usize;
        if self.messages.len() <= number {
            self.messages.resize(number + 1, MessageFault::default());
        }
        &mut self.messages[number]
    }

    /// When a message arrives: at `at`, or with the last message before it in its channel if that is later.
    pub(super) fn in_order(&mut self, channel: u32, at: Picos) -> Picos {
        let channel = channel as usize;
        if self.arrivals.len() <= channel {
            self.arrivals.resize(channel + 1, Picos::ZERO);
        }
        self.arrivals[channel] = self.arrivals[channel].later(at);
        self.arrivals[channel]
    }

    pub(super) fn die(&mut self, rank: Rank, now: Picos) {
        self.deaths[rank.index()].get_or_insert(now);
    }

    /// When `rank` died; `None` if it is alive.
    pub fn died(&self, rank: Rank) -> Option<Picos> {
        self.deaths[rank.index()]
    }
}
