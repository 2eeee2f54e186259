//! Channels: the messages from one rank to another on one lane, in program order on both sides.
//!
//! ```text
//! sender's steps     s1 -> s5 -> s9     one queue per side, in program order; a message starts when the heads
//! receiver's steps   r2 -> r6           of both are posted and the message before has left
//! ```
//!
//! A channel is opened by its first message. When the table is full, channels without messages are removed, so the table's size follows
//! the number of channels in use at one time.

use super::super::Representatives;
use super::window::NONE;
use allfold_sim::hash::GOLDEN;
use allfold_sim::{Crossing, Rank};

/// A channel's key: the sending representative, the rank that it sends to, and the lane.
pub(super) type Key = (u32, u32, u32);

/// How many links of a path are stored with its channel; a longer path is computed again for every message.
const HOPS: usize = 4;

#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Channel {
    pub(super) key: Key,
    /// The first and the last step of the sender's queue (`sends`) and of the receiver's queue (`receives`).
    pub(super) sends: (u32, u32),
    pub(super) receives: (u32, u32),
    /// Whether the first step of each queue is posted.
    pub(super) send_posted: bool,
    pub(super) receive_posted: bool,
    /// Whether a message is between its start and its last byte.
    pub(super) busy: bool,
    /// The number of messages that have started and not arrived.
    pub(super) under_way: u32,
    /// When the latest message that left would have left if messages had no bytes.
    pub(super) chain: u64,
    /// The latency of the whole path.
    pub(super) latency: u64,
    hops: u8,
}

impl Channel {
    /// Whether the channel is free and the sender has no step in its queue, so that the receiver waits for the sender.
    pub(super) fn waits(&self) -> bool {
        !self.busy && self.sends.0 == NONE
    }

    fn is_idle(&self) -> bool {
        self.under_way == 0 && self.sends.0 == NONE && self.receives.0 == NONE
    }
}

/// All channels, indexed by an open-addressed hash table.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    items: Vec<Channel>,
    /// The paths of the channels, separate from the channel's other fields, which fit one cache line.
    paths: Vec<[Crossing; HOPS]>,
    free: Vec<u32>,
    table: Vec<u32>,
}

impl Channels {
    pub(super) fn new() -> Channels {
        Channels { items: Vec::new(), paths: Vec::new(), free: Vec::new(), table: vec![NONE; 64] }
    }

    /// The number of the channel with this key; `None` if there is no such channel.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<u32> {
        let mask = self.table.len() - 1;
        let mut at = hash(key) & mask;
        loop {
            match self.table[at] {
                NONE => return None,
                channel if self.items[channel as usize].key == key => return Some(channel),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Opens a new channel with this key.
    pub(super) fn open(&mut self, key: Key, path: &[Crossing], latency: u64) -> u32 {
        if (self.items.len() - self.free.len() + 1) * 2 > self.table.len() {
            self.make_space();
        }
        let mut short = [Crossing { link: allfold_sim::LinkId(0), weight: 0 }; HOPS];
        let hops = if path.len() <= HOPS {
            short[..path.len()].copy_from_slice(path);
            path.len() as u8
        } else {
            u8::MAX
        };
        let none = (NONE, NONE);
        let item = Channel {
            key,
            sends: none,
            receives: none,
            send_posted: false,
            receive_posted: false,
            busy: false,
            under_way: 0,
            chain: 0,
            latency,
            hops,
        };
        let number = match self.free.pop() {
            Some(number) => {
                (self.items[number as usize], self.paths[number as usize]) = (item, short);
                number
            }
            None => {
                self.items.push(item);
                self.paths.push(short);
                self.items.len() as u32 - 1
            }
        };
        self.enlist(number);
        number
    }

    pub(super) fn get(&self, channel: u32) -> &Channel {
        &self.items[channel as usize]
    }

    /// The path of a channel; `None` if it is too long to be stored.
    pub(super) fn path(&self, channel: u32) -> Option<&[Crossing]> {
        self.paths[channel as usize].get(..usize::from(self.items[channel as usize].hops))
    }

    /// The path of a channel; if it is too long to be stored, it is computed into `scratch`.
    #[inline]
    pub(super) fn whole_path<'p>(
        &'p self,
        channel: u32,
        cast: &impl Representatives,
        scratch: &'p mut Vec<Crossing>,
    ) -> &'p [Crossing] {
        if let Some(path) = self.path(channel) {
            return path;
        }
        let (from, to, _) = self.get(channel).key;
        scratch.clear();
        cast.route(cast.rank(from), Rank(to), scratch);
        scratch
    }

    pub(super) fn get_mut(&mut self, channel: u32) -> &mut Channel {
        &mut self.items[channel as usize]
    }

    /// The channels with messages or queued steps, in no particular order.
    pub(super) fn in_use(&self) -> impl Iterator<Item = &Channel> {
        self.items.iter().filter(|channel| !channel.is_idle())
    }

    /// Adds `by` to the time `chain` of every channel on which a message has left.
    pub(super) fn shift_chains(&mut self, by: u64) {
        self.items.iter_mut().filter(|channel| channel.chain > 0).for_each(|channel| channel.chain += by);
    }

    fn enlist(&mut self, number: u32) {
        let mask = self.table.len() - 1;
        let mut at = hash(self.items[number as usize].key) & mask;
        while self.table[at] != NONE {
            at = (at + 1) & mask;
        }
        self.table[at] = number;
    }

    /// Drops idle channels; grows the table if more than a quarter of it stays in use.
    fn make_space(&mut self) {
        let listed = std::mem::take(&mut self.table);
        let (idle, used): (Vec<u32>, Vec<u32>) =
            listed.iter().filter(|&&c| c != NONE).partition(|&&c| self.items[c as usize].is_idle());
        self.free.extend(idle);
        let size = if used.len() * 4 > listed.len() { listed.len() * 2 } else { listed.len() };
        self.table = vec![NONE; size];
        used.into_iter().for_each(|number| self.enlist(number));
    }
}

#[inline]
fn hash((from, to, lane): Key) -> usize {
    let ends = (u64::from(from) << 32 | u64::from(to)).wrapping_mul(GOLDEN);
    ((ends ^ u64::from(lane).rotate_left(40)).wrapping_mul(GOLDEN) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_fits_a_line_of_the_cache() {
        assert_eq!(size_of::<Channel>(), 64);
    }

    #[test]
    fn idle_channels_make_room_and_used_ones_keep_their_number() {
        let mut channels = Channels::new();
        let used = channels.open((7, 8, 1), &[], 5);
        channels.get_mut(used).under_way = 1;
        for other in 0..100_000 {
            assert_eq!(channels.find((other, 9, 0)), None);
            channels.open((other, 9, 0), &[], 0);
        }
        assert_eq!((channels.find((7, 8, 1)), channels.get(used).latency), (Some(used), 5));
        assert!(channels.items.len() <= 64, "{} channels kept for one in use", channels.items.len());
    }
}
