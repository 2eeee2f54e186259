//! A message from its start to its arrival.
//!
//! ```text
//! start --overhead--> flow --bytes on their links--> left --latency (and reduction)--> arrived
//! channel busy ---------------------------------------|
//! ```

use super::agenda::Due;
use super::window::NONE;
use super::{Cast, Error, Events, Sent};
use allfold_schedules::schedule::Rank;
use allfold_sim::{Bytes, Picos};

/// A message between its start and its arrival.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Message {
    pub(super) round: u64,
    pub(super) channel: u32,
    pub(super) sender: u32,
    pub(super) receiver: u32,
    pub(super) bytes: u64,
    pub(super) start: u64,
    /// When its bytes began to flow.
    pub(super) flow: u64,
    pub(super) left: u64,
    /// Its start on the clock without bytes.
    pub(super) chain: u64,
}

impl<C: Cast> Events<'_, '_, C> {
    /// Starts the next message of a channel, if both of its halves are posted and the channel is free.
    pub(super) fn start(&mut self, now: u64, number: u32) -> Result<(), Error> {
        if self.trouble.is_some() && self.is_cut_off(number) {
            return Ok(());
        }
        let channel = self.channels.get_mut(number);
        if channel.busy || !channel.send_posted || !channel.receive_posted {
            return Ok(());
        }
        let (sender, receiver) = (channel.sends.0, channel.receives.0);
        let (sent, received) = (&self.windows.slots[sender as usize], &self.windows.slots[receiver as usize]);
        channel.busy = true;
        channel.under_way += 1;
        channel.sends.0 = self.windows.behind(sender, &sent.send);
        channel.receives.0 = self.windows.behind(receiver, &received.receive);
        channel.send_posted = self.windows.is_posted(channel.sends.0);
        channel.receive_posted = self.windows.is_posted(channel.receives.0);
        let chain = channel.chain.max(sent.posted_chain).max(received.posted_chain);
        let (read, write) = (sent.send, received.receive);
        let (segment, other) = (sent.segment, received.segment);
        let same = (read.from, read.to, segment) == (write.from, write.to, other);
        let matched = sent.round == received.round;
        let bytes = self.bytes(&read, segment).0;
        if !matched || !same && self.bytes(&write, other).0 != bytes {
            return Err(self.unmatched(sender, receiver));
        }
        let overhead = self.overhead_from(now, sender);
        let round =
            if self.sink.is_some() || self.trouble.is_some() { self.windows.round(sender) } else { 0 };
        self.run.messages += 1;
        self.run.bytes = self.run.bytes.saturating_add(bytes);
        let message = Message {
            round,
            channel: number,
            sender,
            receiver,
            bytes,
            start: now,
            flow: now,
            left: now,
            chain,
        };
        let number = match self.free_messages.pop() {
            Some(free) => {
                self.messages[free as usize] = message;
                free
            }
            None => {
                self.messages.push(message);
                self.messages.len() as u32 - 1
            }
        };
        if self.trouble.is_some() {
            self.judge(now, number);
        }
        match overhead {
            0 => self.flow(now, number),
            _ => self.agenda.after(now, overhead, Due::Flow(number)),
        }
        Ok(())
    }

    /// The bytes of a message begin to flow.
    pub(super) fn flow(&mut self, now: u64, number: u32) {
        if self.trouble.is_some() && self.touches_dead(number) {
            return;
        }
        let message = &mut self.messages[number as usize];
        message.flow = now;
        let channel = self.channels.get(message.channel);
        let bytes = Bytes(message.bytes);
        let flow = match self.channels.path(message.channel) {
            Some(path) => self.network.begin(Picos(now), path, bytes),
            None => {
                self.path.clear();
                let (from, to, _) = channel.key;
                self.cast.route(self.cast.rank(from), Rank(to), &mut self.path);
                self.network.begin(Picos(now), &self.path, bytes)
            }
        };
        let flow = flow.0 as usize;
        if self.carried.len() <= flow {
            self.carried.resize(flow + 1, NONE);
        }
        self.carried[flow] = number;
    }

    /// The last byte of a message is on its way.
    pub(super) fn left(&mut self, now: u64, number: u32) -> Result<(), Error> {
        if self.trouble.is_some() && self.was_copy(number) {
            let channel = self.messages[number as usize].channel;
            self.start(now, channel)?;
            return self.post_ready(now);
        }
        let message = &mut self.messages[number as usize];
        message.left = now;
        let message = *message;
        let overhead = self.overhead(message.sender);
        let channel = self.channels.get_mut(message.channel);
        channel.busy = false;
        let chain = message.chain + overhead;
        channel.chain = chain;
        let latency = channel.latency;
        let costs = &self.job.costs;
        // Whole nanoseconds are cut once, from the first byte to the arrival.
        let arrives = message.flow + costs.rounded(Picos(now - message.flow + latency)).0;
        let mut delay = arrives.saturating_sub(now);
        if self.trouble.is_some() {
            delay = self.later(number, delay);
        }
        if self.windows.slots[message.receiver as usize].reduces {
            let receiver = self.cast.rank(self.windows.actor(message.receiver));
            let span = self.job.costs_of(receiver).reduce(Bytes(message.bytes));
            delay = delay
                .saturating_add(self.job.faults.takes(receiver, Picos(now.saturating_add(delay)), span).0);
        }
        if self.trouble.is_none() || self.will_arrive(now, number, &mut delay) {
            self.agenda.after(now, delay, Due::Arrive(number));
        }
        self.half_done(now, message.sender, chain)?;
        self.start(now, message.channel)?;
        self.post_ready(now)
    }

    /// A message has arrived and is combined.
    pub(super) fn arrived(&mut self, now: u64, number: u32) -> Result<(), Error> {
        let message = self.messages[number as usize];
        if self.trouble.is_some() && self.is_corrupted(number) {
            return Err(self.damaged(now, number));
        }
        self.free_messages.push(number);
        let overhead = self.overhead(message.sender);
        let channel = self.channels.get_mut(message.channel);
        channel.under_way -= 1;
        let chain = message.chain + overhead + self.job.costs.rounded(Picos(channel.latency)).0;
        self.hash.message(self.windows.actor(message.receiver), now);
        if let Some(sink) = &mut self.sink {
            let (from, to, lane) = channel.key;
            sink(&Sent {
                from: self.cast.rank(from),
                to: Rank(to),
                round: message.round,
                lane,
                bytes: Bytes(message.bytes),
                start: Picos(message.start),
                left: Picos(message.left),
                arrived: Picos(now),
            });
        }
        self.half_done(now, message.receiver, chain)
    }
}
