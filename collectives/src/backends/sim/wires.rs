//! Messages under way: channels, and the network that their bytes share.
//!
//! ```text
//! start = max(sender posted, receiver posted, channel free) --overhead--> flow ... left --latency, reduction--> arrived
//! ```

use super::Options;
use super::agenda::{Agenda, Due, Half};
use super::trouble::{Fate, Trouble, copy};
use crate::Rank;
use crate::backends::GroupId;
use crate::time::{Cast, Everyone};
use crate::transport::{Frame, LETTERS};
use allfold_sim::{Bytes, BytesPerSec, Crossing, EventHash, FlowId, LinkId, Network, Picos};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A message between its start and its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageId(usize);

/// A channel: the group, the sender and the receiver in it, the lane.
pub(super) type Channel = (GroupId, Rank, Rank, u32);

/// What the actors of a message are told.
pub(super) enum News {
    Left {
        half: Half,
        to: Rank,
        lane: u32,
    },
    Arrived {
        half: Half,
        from: Rank,
        lane: u32,
        frame: Frame,
    },
    /// With the checksum that it left with, and the one that it came with.
    Damaged {
        half: Half,
        from: Rank,
        frame: Frame,
        sums: (u32, u32),
    },
}

struct Wire {
    sends: VecDeque<(Half, Frame)>,
    receives: VecDeque<(Half, bool)>,
    busy: bool,
    path: Vec<Crossing>,
    latency: Picos,
    /// The sender and the receiver as ranks of the world.
    ends: (Rank, Rank),
}

struct Message {
    channel: Channel,
    sender: Half,
    receiver: Half,
    reduced: bool,
    frame: Frame,
    flow: u64,
    fate: Fate,
    /// Its last byte is on its way.
    left: bool,
}

/// What a frame's bytes come to: CRC-32C.
fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

pub(super) struct Wires {
    wires: BTreeMap<Channel, Wire>,
    messages: Vec<Option<Message>>,
    free: Vec<usize>,
    pub network: Network,
    pub carried: Vec<MessageId>,
    finished: Vec<FlowId>,
    /// Of every message that has arrived, as the time-only engines have it.
    pub hash: EventHash,
    /// What fault rules do beside making ranks and links slower once and for all.
    pub trouble: Option<Trouble>,
}

impl Wires {
    pub fn new(options: &Options) -> Wires {
        let everyone = Everyone::of(&options.topology, &options.faults);
        let steady = |link| everyone.link(link).bandwidth;
        let gates = std::iter::repeat_n(BytesPerSec(u64::MAX), options.faults.gates() as usize);
        let links = (0..everyone.links()).map(|link| steady(LinkId(link))).chain(gates);
        let trouble = Trouble::new(&options.faults, everyone.links(), steady);
        Wires {
            trouble,
            wires: BTreeMap::new(),
            messages: Vec::new(),
            free: Vec::new(),
            network: Network::new(links, options.sharing),
            carried: Vec::new(),
            finished: Vec::new(),
            hash: EventHash::default(),
        }
    }

    fn wire(&mut self, channel: Channel, ends: (Rank, Rank), options: &Options) -> &mut Wire {
        self.wires.entry(channel).or_insert_with(|| {
            let mut path = Vec::new();
            let everyone = Everyone::of(&options.topology, &options.faults);
            let latency = everyone.route(ends.0, ends.1, &mut path);
            Wire { sends: VecDeque::new(), receives: VecDeque::new(), busy: false, path, latency, ends }
        })
    }

    /// The sender posts its half.
    pub fn send(
        &mut self,
        channel: Channel,
        ends: (Rank, Rank),
        half: (Half, Frame),
        now: u64,
        options: &Options,
        agenda: &mut Agenda,
    ) {
        self.wire(channel, ends, options).sends.push_back(half);
        self.start(channel, now, options, agenda);
    }

    /// The receiver posts its half.
    pub fn receive(
        &mut self,
        channel: Channel,
        ends: (Rank, Rank),
        half: (Half, bool),
        now: u64,
        options: &Options,
        agenda: &mut Agenda,
    ) {
        self.wire(channel, ends, options).receives.push_back(half);
        self.start(channel, now, options, agenda);
    }

    /// Starts the next message of a channel, where both halves are posted and the channel is free.
    fn start(&mut self, channel: Channel, now: u64, options: &Options, agenda: &mut Agenda) {
        let Some(wire) = self.wires.get_mut(&channel).filter(|wire| !wire.busy && !wire.receives.is_empty())
        else {
            return;
        };
        let trouble = self.trouble.as_mut();
        if trouble.as_ref().is_some_and(|t| t.dead.contains(&wire.ends.0) || t.dead.contains(&wire.ends.1)) {
            return;
        }
        let Some((sender, frame)) = wire.sends.pop_front() else { return };
        let Some((receiver, reduced)) = wire.receives.pop_front() else { return };
        wire.busy = true;
        let overhead = options.faults.costs(wire.ends.0, &options.costs).overhead;
        let overhead = options.faults.takes(wire.ends.0, Picos(now), overhead).0;
        let fate = trouble.map_or(Fate::default(), |trouble| {
            let of = (frame.call.sequence, frame.round);
            trouble.judge(&options.faults, wire.ends, of, now, wire.path.iter().map(|crossing| crossing.link))
        });
        let message = Message { channel, sender, receiver, reduced, frame, flow: now, fate, left: false };
        let id = match self.free.pop() {
            Some(id) => {
                self.messages[id] = Some(message);
                MessageId(id)
            }
            None => {
                self.messages.push(Some(message));
                MessageId(self.messages.len() - 1)
            }
        };
        match overhead {
            0 => self.flow(id, now),
            _ => agenda.event(now.saturating_add(overhead), Due::Flow(id)),
        }
    }

    /// A message's bytes begin to flow.
    pub fn flow(&mut self, id: MessageId, now: u64) {
        let torn = self.channel_of(id).and_then(|channel| self.ends_of(channel));
        if torn.is_some_and(|(from, to)| self.is_dead(from) || self.is_dead(to)) {
            return;
        }
        let Some(message) = &mut self.messages[id.0] else { return };
        message.flow = now;
        let path = self.wires.get(&message.channel).map_or(&[][..], |wire| &wire.path);
        let bytes = Bytes(message.frame.payload.len() as u64);
        let FlowId(flow) = self.network.begin(Picos(now), path, bytes);
        let flow = flow as usize;
        if self.carried.len() <= flow {
            self.carried.resize(flow + 1, MessageId(usize::MAX));
        }
        self.carried[flow] = id;
    }

    /// Shares the links out among the flows, once all is applied that happens at an instant.
    pub fn settle(&mut self, now: u64) {
        self.network.settle(Picos(now));
    }

    /// When the next message has left, once the instant is settled.
    pub fn next(&mut self) -> Option<u64> {
        self.network.next_finish().map(|finish| finish.0)
    }

    /// Takes the messages that have left by `now`.
    pub fn left(&mut self, now: u64, options: &Options, agenda: &mut Agenda, tell: &mut Vec<News>) {
        let mut finished = std::mem::take(&mut self.finished);
        self.network.take_finished(Picos(now), &mut finished);
        for FlowId(flow) in finished.drain(..) {
            let copied = self.trouble.as_mut().and_then(|trouble| trouble.copies.remove(&flow));
            if let Some(channel) = copied {
                self.wires.get_mut(&channel).into_iter().for_each(|wire| wire.busy = false);
                self.start(channel, now, options, agenda);
                continue;
            }
            let id = self.carried[flow as usize];
            let Some(message) = &mut self.messages[id.0] else { continue };
            message.left = true;
            let channel = message.channel;
            let Some(wire) = self.wires.get_mut(&channel) else { continue };
            wire.busy = false;
            let costs = &options.costs;
            // Whole nanoseconds are cut once, from the first byte to the arrival.
            let arrives =
                message.flow.saturating_add(costs.rounded(Picos(now - message.flow) + wire.latency).0);
            let mut delay = arrives.saturating_sub(now).saturating_add(message.fate.late);
            let bytes = Bytes(message.frame.payload.len() as u64);
            if message.reduced {
                let span = options.faults.costs(wire.ends.1, costs).reduce(bytes);
                let at = Picos(now.saturating_add(delay));
                delay = delay.saturating_add(options.faults.takes(wire.ends.1, at, span).0);
            }
            let mut arrives = now.saturating_add(delay);
            if let Some(trouble) = self.trouble.as_mut().filter(|_| !message.fate.dropped) {
                let last = trouble.arrivals.entry(channel).or_default();
                *last = arrives.max(*last);
                arrives = *last;
            }
            if !message.fate.dropped {
                agenda.event(arrives, Due::Arrive(id));
            }
            if message.fate.duplicated {
                wire.busy = true;
                copy(self, channel, bytes.0, now);
            }
            let Some(message) = &self.messages[id.0] else { continue };
            tell.push(News::Left { half: message.sender, to: channel.2, lane: channel.3 });
            self.start(channel, now, options, agenda);
        }
        self.finished = finished;
    }

    /// A message has arrived.
    pub fn arrived(&mut self, id: MessageId, now: u64) -> Option<News> {
        let Message { channel, receiver, mut frame, fate, .. } = self.messages[id.0].take()?;
        self.hash.message(self.wires.get(&channel)?.ends.1.0, now);
        self.free.push(id.0);
        if let Some(bit) = fate.corrupted.filter(|_| !frame.payload.is_empty()) {
            let sum = |frame: &Frame| checksum(&frame.payload);
            let left = sum(&frame);
            let bit = bit % (frame.payload.len() as u64 * 8);
            frame.payload[(bit / 8) as usize] ^= 1 << (bit % 8);
            let came = sum(&frame);
            if left != came {
                return Some(News::Damaged { half: receiver, from: channel.1, frame, sums: (left, came) });
            }
        }
        Some(News::Arrived { half: receiver, from: channel.1, lane: channel.3, frame })
    }

    /// Where one side of a letter's channel has posted and the other has not: what was posted, by whom, and who
    /// is missing.
    pub fn lonely(&self, channel: Channel) -> Option<(Half, Rank, Rank)> {
        let (_, from, to, lane) = channel;
        let wire = self.wires.get(&channel).filter(|_| lane == LETTERS)?;
        match (wire.sends.front(), wire.receives.front()) {
            (Some((half, _)), None) => Some((*half, from, to)),
            (None, Some((half, _))) => Some((*half, to, from)),
            _ => None,
        }
    }

    /// The channel of a message under way.
    pub fn channel_of(&self, id: MessageId) -> Option<Channel> {
        self.messages.get(id.0)?.as_ref().map(|message| message.channel)
    }

    /// The ends of a channel, as ranks of the world.
    pub fn ends_of(&self, channel: Channel) -> Option<(Rank, Rank)> {
        self.wires.get(&channel).map(|wire| wire.ends)
    }

    /// The path of a channel.
    pub fn path_of(&self, channel: Channel) -> Option<Vec<Crossing>> {
        self.wires.get(&channel).map(|wire| wire.path.clone())
    }

    /// The oldest message under way that one of an actor's halves waits for: from whom, to whom, of which round.
    pub fn stuck(&self, half: Half) -> Option<(Rank, Rank, u64)> {
        let waits = |message: &&Message| message.receiver == half || message.sender == half && !message.left;
        let oldest =
            self.messages.iter().flatten().filter(waits).min_by_key(|message| message.frame.round)?;
        Some((oldest.channel.1, oldest.channel.2, oldest.frame.round))
    }

    /// The channels of letters to and from a rank of a group.
    pub fn letters(&self, group: GroupId, rank: Rank) -> Vec<Channel> {
        let touches = |channel: &&Channel| {
            let (of, from, to, lane) = **channel;
            of == group && lane == LETTERS && (from == rank || to == rank)
        };
        self.wires.keys().filter(touches).copied().collect()
    }

    /// Whom an actor's posted halves wait for.
    pub fn peers(&self, half: Half) -> BTreeSet<Rank> {
        let posted = self.wires.iter().flat_map(|(channel, wire)| {
            let sends = wire.sends.iter().filter(move |(of, _)| *of == half).map(|_| channel.2);
            let receives = wire.receives.iter().filter(move |(of, _)| *of == half).map(|_| channel.1);
            sends.chain(receives)
        });
        let under_way = self.messages.iter().flatten().filter_map(|message| match () {
            () if message.sender == half => Some(message.channel.2),
            () if message.receiver == half => Some(message.channel.1),
            () => None,
        });
        posted.chain(under_way).collect()
    }
}
