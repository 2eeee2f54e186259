//! Channels and the messages in flight on them.
//!
//! A message has the life cycle of [`allfold_sim::transit`], as in `allfold_timing`:
//!
//! ```text
//! start = max(sender posted, receiver posted, channel free) --overhead--> flow ... left --latency, reduction--> arrived
//! ```

use super::event_queue::{EventQueue, ScheduledEvent};
use super::message::{Channel, Half, MessageId};
use super::options::Options;
use crate::Rank;
use crate::backends::GroupId;
use crate::time::{AllRanks, Representatives};
use crate::transport::{Frame, POINT_TO_POINT};
use allfold_sim::fault::Message;
use allfold_sim::{Bytes, Crossing, EventHash, FlowId, LinkId, Picos, Transit};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An event for the sender or the receiver of a message.
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
    /// The frame was damaged: the checksum with which it was sent, and the checksum with which it arrived.
    Damaged {
        half: Half,
        from: Rank,
        frame: Frame,
        sums: (u32, u32),
    },
}

struct ChannelState {
    key: Channel,
    sends: VecDeque<(Half, Frame)>,
    receives: VecDeque<(Half, bool)>,
    busy: bool,
    path: Vec<Crossing>,
    latency: Picos,
    /// The sender and the receiver as ranks of the world.
    ends: (Rank, Rank),
}

/// The two halves of a message, and the message's frame.
pub(super) struct Posted {
    sender: Half,
    receiver: Half,
    reduced: bool,
    frame: Frame,
}

/// The checksum of a frame's bytes: CRC-32C.
fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

pub(super) struct Channels {
    /// The number of each channel, given in order of first use.
    numbers: BTreeMap<Channel, u32>,
    channels: Vec<ChannelState>,
    /// The messages in flight. `None`: the message has arrived, or is the copy of another message.
    pub transit: Transit<Option<Posted>>,
    finished: Vec<FlowId>,
    /// The hash of all messages that have arrived, the same as in the time-only engines.
    pub hash: EventHash,
}

impl Channels {
    pub fn new(options: &Options) -> Channels {
        let all_ranks = AllRanks::of(&options.topology, &options.faults);
        let links = (0..all_ranks.links()).map(|link| all_ranks.link(LinkId(link)).bandwidth).collect();
        Channels {
            numbers: BTreeMap::new(),
            channels: Vec::new(),
            transit: Transit::new(links, options.topology.ranks(), &options.faults, options.sharing),
            finished: Vec::new(),
            hash: EventHash::default(),
        }
    }

    /// The number of a channel, which is opened at its first use.
    fn number(&mut self, key: Channel, ends: (Rank, Rank), options: &Options) -> u32 {
        let next = self.channels.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            let mut path = Vec::new();
            let all_ranks = AllRanks::of(&options.topology, &options.faults);
            let latency = all_ranks.route(ends.0, ends.1, &mut path);
            let (sends, receives) = (VecDeque::new(), VecDeque::new());
            self.channels.push(ChannelState { key, sends, receives, busy: false, path, latency, ends });
        }
        number
    }

    fn channel_state(&self, key: Channel) -> Option<&ChannelState> {
        self.numbers.get(&key).map(|number| &self.channels[*number as usize])
    }

    /// The sender posts its half.
    pub fn send(
        &mut self,
        channel: Channel,
        ends: (Rank, Rank),
        half: (Half, Frame),
        now: u64,
        options: &Options,
        event_queue: &mut EventQueue,
    ) {
        let number = self.number(channel, ends, options);
        self.channels[number as usize].sends.push_back(half);
        self.start(number, now, options, event_queue);
    }

    /// The receiver posts its half.
    pub fn receive(
        &mut self,
        channel: Channel,
        ends: (Rank, Rank),
        half: (Half, bool),
        now: u64,
        options: &Options,
        event_queue: &mut EventQueue,
    ) {
        let number = self.number(channel, ends, options);
        self.channels[number as usize].receives.push_back(half);
        self.start(number, now, options, event_queue);
    }

    /// Whether the rank at one end of a channel has died.
    fn is_cut_off(&self, channel: u32) -> bool {
        let (from, to) = self.channels[channel as usize].ends;
        self.transit.is_dead(from) || self.transit.is_dead(to)
    }

    /// Starts the next message of a channel if both halves are posted and the channel is free.
    fn start(&mut self, channel: u32, now: u64, options: &Options, event_queue: &mut EventQueue) {
        let cut_off = self.is_cut_off(channel);
        let channel_state = &mut self.channels[channel as usize];
        if channel_state.busy || cut_off || channel_state.receives.is_empty() {
            return;
        }
        let Some((sender, frame)) = channel_state.sends.pop_front() else { return };
        let Some((receiver, reduced)) = channel_state.receives.pop_front() else { return };
        channel_state.busy = true;
        let (faults, (from, to), at) = (&options.faults, channel_state.ends, Picos(now));
        let overhead =
            self.transit.overhead(faults, || from, at, faults.costs(from, &options.costs).overhead);
        let (operation, round) = (frame.call.sequence, frame.round);
        let bytes = Bytes(frame.payload.length() as u64);
        let number =
            self.transit.start(at, channel, bytes, Some(Posted { sender, receiver, reduced, frame }));
        if let Some(state) = &mut self.transit.faults {
            let message = Message { from, to, operation, round, nth: 0, at };
            state.decide(faults, number, message, channel_state.path.iter().map(|crossing| crossing.link));
        }
        match overhead {
            Picos::ZERO => self.flow(MessageId(number), now),
            _ => event_queue.event(now.saturating_add(overhead.0), ScheduledEvent::Flow(MessageId(number))),
        }
    }

    /// A message's bytes begin to flow.
    pub fn flow(&mut self, MessageId(number): MessageId, now: u64) {
        let channel = self.transit.get(number).channel;
        if !self.is_cut_off(channel) {
            self.transit.flow(Picos(now), number, &self.channels[channel as usize].path);
        }
    }

    /// Takes the messages that have left by `now`.
    pub fn left(&mut self, now: u64, options: &Options, event_queue: &mut EventQueue, news: &mut Vec<News>) {
        let mut finished = std::mem::take(&mut self.finished);
        self.transit.network.take_finished(Picos(now), &mut finished);
        for flow in finished.drain(..) {
            let number = self.transit.carried(flow);
            let channel = self.transit.get(number).channel;
            let channel_state = &mut self.channels[channel as usize];
            channel_state.busy = false;
            if self.transit.ends_copy(number) {
                self.start(channel, now, options, event_queue);
                continue;
            }
            let Some(posted) = &self.transit.get(number).of else { continue };
            news.push(News::Left { half: posted.sender, to: channel_state.key.2, lane: channel_state.key.3 });
            let way = (channel_state.latency, posted.reduced.then_some(channel_state.ends.1));
            let leaving = self.transit.leave(Picos(now), number, way, &options.costs, &options.faults);
            if let Some(arrives) = leaving.arrives {
                event_queue.event(arrives.0, ScheduledEvent::Arrive(MessageId(number)));
            }
            if leaving.copied {
                channel_state.busy = true;
                self.transit.copy(Picos(now), number, None, &channel_state.path);
            }
            self.start(channel, now, options, event_queue);
        }
        self.finished = finished;
    }

    /// Delivers a message that has arrived.
    pub fn arrived(&mut self, MessageId(number): MessageId, now: u64) -> Option<News> {
        let message = self.transit.get_mut(number);
        let (channel, Posted { receiver, mut frame, .. }) = (message.channel, message.of.take()?);
        self.transit.release(number);
        let ChannelState { key: (_, from, _, lane), ends, .. } = self.channels[channel as usize];
        self.hash.message(ends.1.0, now);
        let corrupted = self.transit.faults.as_ref().and_then(|state| state.message(number).corrupted);
        if let Some(bit) = corrupted.filter(|_| !frame.payload.is_empty()) {
            let sum = |frame: &Frame| checksum(&frame.payload);
            let left = sum(&frame);
            let bit = bit % (frame.payload.len() as u64 * 8);
            frame.payload[(bit / 8) as usize] ^= 1 << (bit % 8);
            let came = sum(&frame);
            if left != came {
                return Some(News::Damaged { half: receiver, from, frame, sums: (left, came) });
            }
        }
        Some(News::Arrived { half: receiver, from, lane, frame })
    }

    /// Kills a rank: messages that it has not sent never leave, and messages that it has not received never arrive.
    pub fn die(&mut self, rank: Rank, now: u64) {
        let channels = &self.channels;
        self.transit.die(rank, Picos(now), |transit, channel| {
            let (from, to) = channels[channel as usize].ends;
            transit.is_dead(from) || transit.is_dead(to)
        });
    }

    /// The half of a point-to-point channel that is posted while the other half is not: the half, its rank, and the missing rank.
    pub fn half_posted(&self, channel: Channel) -> Option<(Half, Rank, Rank)> {
        let (_, from, to, lane) = channel;
        let channel_state = self.channel_state(channel).filter(|_| lane == POINT_TO_POINT)?;
        match (channel_state.sends.front(), channel_state.receives.front()) {
            (Some((half, _)), None) => Some((*half, from, to)),
            (None, Some((half, _))) => Some((*half, to, from)),
            _ => None,
        }
    }

    /// The messages in flight, with their numbers and their channels.
    fn under_way(&self) -> impl Iterator<Item = (u32, &Posted, Channel)> {
        (0u32..).zip(self.transit.messages()).filter_map(|(number, message)| {
            Some((number, message.of.as_ref()?, self.channels[message.channel as usize].key))
        })
    }

    /// The oldest message in flight that one of a task's halves waits for: its sender, receiver and round.
    pub fn stuck(&self, half: Half) -> Option<(Rank, Rank, u64)> {
        let has_left =
            |number: u32| self.transit.faults.as_ref().is_some_and(|state| state.message(number).left);
        let waits = |(number, posted, _): &(u32, &Posted, Channel)| {
            posted.receiver == half || posted.sender == half && !has_left(*number)
        };
        let oldest = self.under_way().filter(waits).min_by_key(|(_, posted, _)| posted.frame.round);
        oldest.map(|(_, posted, (_, from, to, _))| (from, to, posted.frame.round))
    }

    /// The channels of point-to-point messages to and from a rank of a group.
    pub fn point_to_point(&self, group: GroupId, rank: Rank) -> Vec<Channel> {
        let touches = |channel: &&Channel| {
            let (of, from, to, lane) = **channel;
            of == group && lane == POINT_TO_POINT && (from == rank || to == rank)
        };
        self.numbers.keys().filter(touches).copied().collect()
    }

    /// The ranks that a task's posted halves wait for.
    pub fn peers(&self, half: Half) -> BTreeSet<Rank> {
        let posted = self.channels.iter().flat_map(|channel_state| {
            let sends =
                channel_state.sends.iter().filter(move |(of, _)| *of == half).map(|_| channel_state.key.2);
            let receives =
                channel_state.receives.iter().filter(move |(of, _)| *of == half).map(|_| channel_state.key.1);
            sends.chain(receives)
        });
        let under_way = self.under_way().filter_map(|(_, posted, (_, from, to, _))| match () {
            () if posted.sender == half => Some(to),
            () if posted.receiver == half => Some(from),
            () => None,
        });
        posted.chain(under_way).collect()
    }
}
