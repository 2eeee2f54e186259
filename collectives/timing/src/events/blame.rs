//! Finds the culprit when ranks cannot finish: a rank or a path.
//!
//! ```text
//! rank 5 waits for rank 4, which waits for rank 3, which waits for a lost message from rank 2: the path from 2 to 3
//! ```

use super::super::{Error, Representatives};
use super::engine::Events;
use super::window::NONE;
use crate::{Cause, Culprit, Failure};
use allfold_schedules::schedule::{Rank, Step};
use allfold_sim::transit::MessageFault;
use allfold_sim::{BytesPerSec, FlowId};
use std::collections::BTreeSet;

/// What a step waits for.
enum Wait {
    /// The step waits for a rank that has not posted its half.
    Peer(Rank),
    /// The step waits for a message in flight, which has this fault.
    Message(Rank, Rank, Cause),
    /// The step waits for its own rank's work.
    Itself,
}

impl<C: Representatives> Events<'_, '_, C> {
    /// Whether the deadline has passed and some surviving rank is not done.
    pub(super) fn is_late(&self, now: u64) -> bool {
        let open = |representative| !self.is_finished(representative) && !self.is_dead(representative);
        self.job.deadline.is_some_and(|deadline| now > deadline.0)
            && (0..self.cast.representatives()).any(open)
    }

    /// The error for a run that a fault or the deadline ends: it names the culprit.
    pub(super) fn failure(&self) -> Error {
        Blame(self).failure()
    }

    /// The error for a run without faults that cannot finish, of which this is a rank that is not done.
    pub(super) fn deadlock(&self, representative: u32) -> Error {
        Blame(self).deadlock(representative)
    }

    /// The error for two halves at the heads of one channel that do not belong to one message.
    pub(super) fn unmatched(&self, sender: u32, receiver: u32) -> Error {
        let rank = |slot| self.cast.rank(self.windows.representative(slot));
        let (sent, received) = (&self.windows.slots[sender], &self.windows.slots[receiver]);
        let what = format!(
            "sends {} bytes that rank {} receives in round {} as {} bytes",
            self.bytes(&sent.send, sent.segment).0,
            rank(receiver),
            self.windows.round(receiver),
            self.bytes(&received.receive, received.segment).0
        );
        Error::Unmatched { rank: rank(sender), round: self.windows.round(sender), what }
    }
}

/// What the ranks of a run that cannot finish wait for.
struct Blame<'e, 'a, 's, C>(&'e Events<'a, 's, C>);

impl<C: Representatives> Blame<'_, '_, '_, C> {
    /// Starting at a surviving rank, follows what each rank waits for, up to a rank that has died, a message in flight, or a rank that
    /// waits for no other rank.
    fn failure(&self) -> Error {
        let open =
            |representative: &u32| !self.0.is_finished(*representative) && !self.0.is_dead(*representative);
        let Some(mut representative) = (0..self.0.cast.representatives()).find(open) else {
            return self.deadlock(0);
        };
        let faults = self.0.transit.faults.as_ref();
        let died = |rank: Rank| faults.and_then(|faults| Some((rank, faults.died(rank)?)));
        let mut round = 0;
        for _ in 0..self.0.cast.representatives() {
            let told = self.0.cast.rank(representative);
            let failed = |culprit, cause, round, at| {
                Error::Fault(Box::new(Failure { culprit, cause, told, round, at }))
            };
            if self.0.windows.is_empty(representative) {
                return failed(Culprit::Rank(told), Cause::Late, round, self.0.job.deadline);
            }
            let slot = self.0.windows.oldest(representative);
            round = self.0.windows.round(slot);
            let peer = match self.waits_for(slot, told, round) {
                Wait::Peer(peer) => peer,
                Wait::Message(from, to, cause) => {
                    if let Some((rank, at)) = [from, to].into_iter().find_map(died) {
                        return failed(Culprit::Rank(rank), Cause::Died(at), round, Some(at));
                    }
                    return failed(Culprit::Path { from, to }, cause, round, self.0.job.deadline);
                }
                Wait::Itself => return failed(Culprit::Rank(told), Cause::Late, round, self.0.job.deadline),
            };
            if let Some((rank, at)) = died(peer) {
                return failed(Culprit::Rank(rank), Cause::Died(at), round, Some(at));
            }
            representative = self.0.cast.representative(peer);
        }
        self.deadlock(representative)
    }

    /// What the step in `slot` of `rank`, its oldest step, waits for.
    fn waits_for(&self, slot: u32, rank: Rank, round: u64) -> Wait {
        let idle: BTreeSet<u32> = self.0.transit.released().iter().copied().collect();
        let fault = |number: u32| {
            self.0.transit.faults.as_ref().map_or(MessageFault::default(), |faults| faults.message(number))
        };
        let mut messages = (0u32..).zip(self.0.transit.messages());
        let under_way = messages.find(|(number, message)| {
            let (sends, receives) = (message.of.sender == slot, message.of.receiver == slot);
            !idle.contains(number) && (if sends { !fault(*number).left } else { receives })
        });
        let step = self.0.job.schedule.step(rank, round);
        if let Some((number, _)) = under_way {
            let (from, to) = self.0.ends(number);
            let network = &self.0.transit.network;
            let stands =
                |flow: FlowId| self.0.transit.carried(flow) == number && network.rate(flow) == BytesPerSec(0);
            let cause = match () {
                () if fault(number).dropped => Cause::Lost,
                () if network.flows().any(stands) => Cause::Partitioned,
                () => Cause::Late,
            };
            return Wait::Message(from, to, cause);
        }
        let queued = |channel: u32, receives: bool| {
            channel != NONE && {
                let channel = self.0.channels.get(channel);
                if receives { channel.receives.0 == slot } else { channel.sends.0 == slot }
            }
        };
        let half = &self.0.windows.slots[slot];
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

    fn deadlock(&self, representative: u32) -> Error {
        let rank = self.0.cast.rank(representative);
        let oldest = self.0.windows.oldest(representative);
        let (step, round) = (&self.0.windows.slots[oldest], self.0.windows.round(oldest));
        let what = match self.0.job.schedule.step(rank, round) {
            _ if !self.0.windows.is_posted(oldest) => "an earlier step".into(),
            Step { recv: Some((from, ..)), .. } if self.0.channels.get(step.receive.channel).waits() => {
                format!("a message from rank {from}")
            }
            Step { send: Some((to, _)), .. } => format!("rank {to} to receive"),
            Step { recv: Some((from, ..)), .. } => format!("a message from rank {from}"),
            _ => "nothing".into(),
        };
        Error::Deadlock { rank, round, what }
    }
}
