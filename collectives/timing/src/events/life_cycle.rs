//! The life cycle of a message, and its effects on the two halves of steps that it connects.

use super::super::{Error, Representatives};
use super::engine::Events;
use super::event_queue::ScheduledEvent;
use super::message::Halves;
use super::sent::Sent;
use allfold_schedules::schedule::Rank;
use allfold_sim::transit::InFlight;
use allfold_sim::{Bytes, Picos};

impl<C: Representatives> Events<'_, '_, C> {
    /// Starts the next message of a channel, if both of its halves are posted and the channel is free.
    pub(super) fn start(&mut self, now: u64, number: u32) -> Result<(), Error> {
        if self.transit.faults.is_some() && self.is_cut_off(number) {
            return Ok(());
        }
        let channel = self.channels.get_mut(number);
        if channel.busy || !channel.send_posted || !channel.receive_posted {
            return Ok(());
        }
        let (sender, receiver) = (channel.sends.0, channel.receives.0);
        let (sent, received) = (&self.windows.slots[sender], &self.windows.slots[receiver]);
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
        let overhead = Picos(self.overhead(sender));
        let from = || self.cast.rank(self.windows.representative(sender));
        let overhead = self.transit.overhead(self.job.faults, from, Picos(now), overhead);
        let faulty = self.transit.faults.is_some();
        let round = if self.sink.is_some() || faulty { self.windows.round(sender) } else { 0 };
        self.run.messages += 1;
        self.run.bytes = self.run.bytes.saturating_add(bytes);
        let halves = Halves { round, sender, receiver, start: now, left: now, chain };
        let message = self.transit.start(Picos(now), number, Bytes(bytes), halves);
        if faulty {
            self.decide(now, message);
        }
        match overhead {
            Picos::ZERO => self.flow(now, message),
            _ => self.event_queue.after(now, overhead.0, ScheduledEvent::Flow(message)),
        }
        Ok(())
    }

    /// Lets the bytes of a message begin to flow.
    pub(super) fn flow(&mut self, now: u64, number: u32) {
        let channel = self.transit.get(number).channel;
        if self.transit.faults.is_some() && self.is_cut_off(channel) {
            return;
        }
        let path = self.channels.whole_path(channel, self.cast, &mut self.path);
        self.transit.flow(Picos(now), number, path);
    }

    /// Handles a message whose last byte has left: the sender's half is done.
    pub(super) fn left(&mut self, now: u64, number: u32) -> Result<(), Error> {
        if self.transit.faults.is_some() && self.was_copy(number) {
            self.start(now, self.transit.get(number).channel)?;
            return self.post_ready(now);
        }
        let message = self.transit.get_mut(number);
        message.of.left = now;
        let (number_of_channel, Halves { sender, receiver, chain, .. }) = (message.channel, message.of);
        let chain = chain + self.overhead(sender);
        let channel = self.channels.get_mut(number_of_channel);
        channel.busy = false;
        channel.chain = chain;
        let reduces = self.windows.slots[receiver].reduces;
        let combines = reduces.then(|| self.cast.rank(self.windows.representative(receiver)));
        let way = (Picos(channel.latency), combines);
        let leaving = self.transit.leave(Picos(now), number, way, &self.job.costs, self.job.faults);
        if leaving.copied {
            self.send_copy(now, number);
        }
        if let Some(arrives) = leaving.arrives {
            self.event_queue.after(now, (arrives - Picos(now)).0, ScheduledEvent::Arrive(number));
        }
        self.half_done(now, sender, chain)?;
        self.start(now, number_of_channel)?;
        self.post_ready(now)
    }

    /// Handles a message that has arrived and is combined: the receiver's half is done.
    pub(super) fn arrived(&mut self, now: u64, number: u32) -> Result<(), Error> {
        if self.transit.faults.is_some() && self.is_corrupted(number) {
            return Err(self.damaged(now, number));
        }
        let &InFlight { channel, bytes, of: message, .. } = self.transit.get(number);
        self.transit.release(number);
        let overhead = self.overhead(message.sender);
        let channel = self.channels.get_mut(channel);
        channel.under_way -= 1;
        let chain = message.chain + overhead + self.job.costs.rounded(Picos(channel.latency)).0;
        self.hash.message(self.windows.representative(message.receiver), now);
        if let Some(sink) = &mut self.sink {
            let (from, to, lane) = channel.key;
            sink(&Sent {
                from: self.cast.rank(from),
                to: Rank(to),
                round: message.round,
                lane,
                bytes,
                start: Picos(message.start),
                left: Picos(message.left),
                arrived: Picos(now),
            });
        }
        self.half_done(now, message.receiver, chain)
    }
}
