//! The effects of fault rules on steps and messages of a run, other than permanent slowdowns.
//!
//! A run without such rules has no fault state; callers check this first.

use super::super::{Error, Representatives};
use super::engine::Events;
use crate::{Cause, Culprit, Failure};
use allfold_schedules::schedule::Rank;
use allfold_sim::Picos;
use allfold_sim::fault::{Death, Message};
use allfold_sim::transit::InFlight;

impl<C: Representatives> Events<'_, '_, C> {
    /// Decides the fault effects on message `number`, which starts now.
    pub(super) fn decide(&mut self, now: u64, number: u32) {
        let (from, to) = self.ends(number);
        let round = self.transit.get(number).of.round;
        let Some(state) = &mut self.transit.faults else { return };
        self.path.clear();
        if state.touches_messages() {
            self.cast.route(from, to, &mut self.path);
        }
        let message = Message { from, to, operation: 0, round, nth: 0, at: Picos(now) };
        let links = self.path.iter().map(|crossing| crossing.link);
        state.decide(self.job.faults, number, message, links);
    }

    /// Starts the second copy of a duplicated message, which occupies its channel and its links again.
    pub(super) fn send_copy(&mut self, now: u64, number: u32) {
        let &InFlight { channel, of, .. } = self.transit.get(number);
        let state = self.channels.get_mut(channel);
        state.busy = true;
        state.under_way += 1;
        let path = self.channels.whole_path(channel, self.cast, &mut self.path);
        self.transit.copy(Picos(now), number, of, path);
    }

    /// Whether the message that has left is a second copy, which the receiver drops; the channel is then free again.
    pub(super) fn was_copy(&mut self, number: u32) -> bool {
        let copy = self.transit.ends_copy(number);
        if copy {
            let channel = self.channels.get_mut(self.transit.get(number).channel);
            channel.busy = false;
            channel.under_way -= 1;
        }
        copy
    }

    /// Whether a message arrives with a wrong checksum.
    pub(super) fn is_corrupted(&self, number: u32) -> bool {
        self.transit.faults.as_ref().is_some_and(|state| state.message(number).corrupted.is_some())
    }

    /// The error for a message with a wrong checksum: its receiver fails the operation immediately.
    pub(super) fn damaged(&self, now: u64, number: u32) -> Error {
        let (from, to) = self.ends(number);
        let round = self.transit.get(number).of.round;
        let (culprit, cause, at) = (Culprit::Path { from, to }, Cause::Corrupted, Some(Picos(now)));
        Error::Fault(Box::new(Failure { culprit, cause, told: to, round, at }))
    }

    /// Kills a representative: messages that it has not sent never leave, and messages that it has not received never arrive.
    pub(super) fn die(&mut self, now: u64, representative: u32) {
        if self.is_finished(representative) || self.is_dead(representative) {
            return;
        }
        let Events { transit, channels, cast, .. } = self;
        transit.die(cast.rank(representative), Picos(now), |transit, channel| {
            let (from, to, _) = channels.get(channel).key;
            transit.is_dead(cast.rank(from)) || transit.is_dead(Rank(to))
        });
    }

    /// Whether a dying representative reaches the step before which it dies, or a later step; the representative has then died.
    pub(super) fn dies_before(&mut self, now: u64, slot: u32) -> bool {
        let representative = self.windows.representative(slot);
        if let Some(Death::In { operation: 0, round }) = self.job.faults.death(self.cast.rank(representative))
            && self.windows.round(slot) >= round
        {
            self.die(now, representative);
        }
        self.is_dead(representative)
    }

    pub(super) fn is_dead(&self, representative: u32) -> bool {
        self.transit.faults.is_some() && self.transit.is_dead(self.cast.rank(representative))
    }

    /// Whether the rank at one end of a channel has died.
    pub(super) fn is_cut_off(&self, channel: u32) -> bool {
        let (from, to, _) = self.channels.get(channel).key;
        self.is_dead(from) || self.is_dead(self.cast.representative(Rank(to)))
    }

    /// The sender and the receiver of a message.
    pub(super) fn ends(&self, number: u32) -> (Rank, Rank) {
        let (from, to, _) = self.channels.get(self.transit.get(number).channel).key;
        (self.cast.rank(from), Rank(to))
    }
}
