//! Messages under way: channels, and the network that their bytes share.
//!
//! ```text
//! start = max(sender posted, receiver posted, channel free) --overhead--> flow ... left --latency, reduction--> arrived
//! ```

use super::Options;
use super::agenda::{Agenda, Due, Half};
use crate::Rank;
use crate::backends::GroupId;
use crate::time::{Cast, Everyone};
use crate::transport::{Frame, LETTERS};
use allfold_sim::{Bytes, Crossing, EventHash, FlowId, Network, Picos};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A message between its start and its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageId(usize);

/// A channel: the group, the sender and the receiver in it, the lane.
pub(super) type Channel = (GroupId, Rank, Rank, u32);

/// What the actors of a message are told.
pub(super) enum News {
    Left { half: Half, to: Rank, lane: u32 },
    Arrived { half: Half, from: Rank, lane: u32, frame: Frame },
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
}

pub(super) struct Wires {
    wires: BTreeMap<Channel, Wire>,
    messages: Vec<Option<Message>>,
    free: Vec<usize>,
    network: Network,
    carried: Vec<MessageId>,
    finished: Vec<FlowId>,
    /// Of every message that has arrived, as the time-only engines have it.
    pub hash: EventHash,
}

impl Wires {
    pub fn new(options: &Options) -> Wires {
        let everyone = Everyone::of(&options.topology, &options.faults);
        let links = (0..everyone.links()).map(|link| everyone.link(allfold_sim::LinkId(link)).bandwidth);
        Wires {
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
        let Some((sender, frame)) = wire.sends.pop_front() else { return };
        let Some((receiver, reduced)) = wire.receives.pop_front() else { return };
        wire.busy = true;
        let overhead = options.faults.costs(wire.ends.0, &options.costs).overhead.0;
        let message = Message { channel, sender, receiver, reduced, frame, flow: now };
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
            let id = self.carried[flow as usize];
            let Some(message) = &self.messages[id.0] else { continue };
            let channel = message.channel;
            let Some(wire) = self.wires.get_mut(&channel) else { continue };
            wire.busy = false;
            let costs = &options.costs;
            // Whole nanoseconds are cut once, from the first byte to the arrival.
            let arrives =
                message.flow.saturating_add(costs.rounded(Picos(now - message.flow) + wire.latency).0);
            let mut delay = arrives.saturating_sub(now);
            if message.reduced {
                let bytes = Bytes(message.frame.payload.len() as u64);
                delay = delay.saturating_add(options.faults.costs(wire.ends.1, costs).reduce(bytes).0);
            }
            agenda.event(now.saturating_add(delay), Due::Arrive(id));
            tell.push(News::Left { half: message.sender, to: channel.2, lane: channel.3 });
            self.start(channel, now, options, agenda);
        }
        self.finished = finished;
    }

    /// A message has arrived.
    pub fn arrived(&mut self, id: MessageId, now: u64) -> Option<News> {
        let Message { channel, receiver, frame, .. } = self.messages[id.0].take()?;
        self.hash.message(self.wires.get(&channel)?.ends.1.0, now);
        self.free.push(id.0);
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
