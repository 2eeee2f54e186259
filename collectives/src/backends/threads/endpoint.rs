//! A rank's connection to its peers through mailboxes.

use super::group::{Group, Mail};
use super::options::Options;
use crate::contract::deadline::{LOOK, after, clock};
use crate::schedule::Combine;
use crate::transport::{Event, Frame, Monitor, Payload, Pool, Transport};
use crate::{Call, Error, Operation, Rank, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a waiting thread looks at its mailbox before it sleeps: about twenty microseconds (a `pause` takes about 40 ns),
/// which is about as long as waking a sleeping thread takes.
const LOOKS: u32 = 500;

pub(super) struct Endpoint {
    group: Arc<Group>,
    rank: Rank,
    options: Options,
    pool: Pool,
    spin: bool,
    call: Option<Arc<Call>>,
    due: Instant,
    /// Posted sends that are not reported yet, oldest first: peer, lane, and the number of the message on its channel.
    sends: VecDeque<(Rank, u32, u64)>,
    recvs: VecDeque<(Rank, u32)>,
    ready: VecDeque<Event>,
}

impl Endpoint {
    pub fn new(group: Arc<Group>, rank: Rank, options: Options, pool: Pool, spin: bool) -> Endpoint {
        let (sends, recvs, ready) = Default::default();
        Endpoint { group, rank, options, pool, spin, call: None, due: clock(), sends, recvs, ready }
    }

    /// Moves received messages and completed sends to `ready`. Returns the channels of the received messages.
    fn collect(&mut self, mail: &mut Mail) -> Vec<(Rank, u32)> {
        let mut taken = Vec::new();
        let mut dry: Vec<(Rank, u32)> = Vec::new();
        let ready = &mut self.ready;
        self.recvs.retain(|&(from, lane)| {
            let channel = (from, lane);
            if dry.contains(&channel) {
                return true;
            }
            match mail.frames.get_mut(&channel).and_then(VecDeque::pop_front) {
                Some(frame) => {
                    taken.push(channel);
                    ready.push_back(Event::Received { from, lane, frame });
                    false
                }
                None => {
                    dry.push(channel);
                    true
                }
            }
        });
        let capacity = self.options.capacity as u64;
        self.sends.retain(|&(to, lane, number)| {
            let left = mail.taken.get(&(to, lane)).copied().unwrap_or_default() + capacity >= number;
            if left {
                ready.push_back(Event::Sent { to, lane });
            }
            !left
        });
        taken
    }

    /// The group's failure, or the loss of a peer that this rank waits for.
    fn alarm(&mut self) -> Result<()> {
        let peers = self.recvs.iter().map(|r| r.0).chain(self.sends.iter().map(|s| s.0));
        let rank = self.rank;
        let (failure, lost) = self.group.calls(|calls| {
            let failure = calls.failure(rank);
            (failure, peers.into_iter().find(|peer| calls.has_left(*peer)))
        });
        if let Some(error) = failure {
            return Err(error);
        }
        // The communication thread of a rank that has returned still finishes its collectives; point-to-point messages fail.
        let point_to_point = self.call.as_ref().is_some_and(|call| call.operation == Operation::PointToPoint);
        let Some(peer) = lost.filter(|_| point_to_point) else { return Ok(()) };
        // The peer left after its last post: a message that is not here now never arrives.
        self.exchange();
        let waiting = self.recvs.iter().any(|r| r.0 == peer) || self.sends.iter().any(|s| s.0 == peer);
        if waiting && self.ready.is_empty() {
            let error = self.group.calls(|calls| calls.lose(rank, peer, self.call.as_deref()));
            return Err(self.group.fail(rank, error));
        }
        Ok(())
    }

    /// Takes the mail and acknowledges the received messages. Returns whether the group has failed or a rank has left.
    fn exchange(&mut self) -> bool {
        let group = self.group.clone();
        let mut mail = group.mailbox(self.rank).open();
        let taken = self.collect(&mut mail);
        let alarm = mail.alarm;
        drop(mail);
        for (peer, lane) in taken {
            let key = (self.rank, lane);
            group.mailbox(peer).deliver(|mail| *mail.taken.entry(key).or_default() += 1);
        }
        alarm
    }

    fn late(&self, round: u64) -> Error {
        let call = match &self.call {
            Some(call) => call.as_ref().clone(),
            None => Call::plain(Operation::PointToPoint, 0, 0, crate::DType::U8),
        };
        let absent = match call.operation {
            Operation::PointToPoint => Vec::new(),
            _ => self.group.calls(|calls| calls.absent(call.sequence)),
        };
        let entered = absent.is_empty();
        let mut waiting_on = absent;
        if entered {
            waiting_on = self.recvs.iter().map(|r| r.0).chain(self.sends.iter().map(|s| s.0)).collect();
            waiting_on.sort();
            waiting_on.dedup();
        }
        let after = self.options.deadline;
        Error::DeadlineExceeded { rank: self.rank, waiting_on, entered, call: Box::new(call), round, after }
    }

    /// Polls the mailbox's count of changes for a while. Returns whether it changed.
    fn watch(&self, seen: u64) -> bool {
        let mailbox = self.group.mailbox(self.rank);
        self.spin
            && (0..LOOKS).any(|_| {
                std::hint::spin_loop();
                mailbox.news() != seen
            })
    }
}

impl Transport for Endpoint {
    fn enter(&mut self, call: &Arc<Call>) -> Result<()> {
        self.sends.clear();
        self.recvs.clear();
        self.ready.clear();
        self.call = Some(call.clone());
        self.due = after(self.options.deadline);
        match call.operation {
            Operation::PointToPoint => self.group.calls(|l| l.failure(self.rank)).map_or(Ok(()), Err),
            _ => self.group.enter(self.rank, call),
        }
    }

    fn alloc(&self, bytes: usize) -> Payload {
        self.pool.take(bytes)
    }

    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame) {
        let number = {
            let mut mine = self.group.mailbox(self.rank).open();
            let number = mine.sent.entry((to, lane)).or_default();
            *number += 1;
            *number
        };
        let key = (self.rank, lane);
        self.group.mailbox(to).deliver(|mail| mail.frames.entry(key).or_default().push_back(frame));
        self.sends.push_back((to, lane, number));
    }

    fn post_recv(&mut self, from: Rank, lane: u32, _bytes: usize, _how: Combine) {
        self.recvs.push_back((from, lane));
    }

    fn wait(&mut self, round: u64) -> Result<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let seen = self.group.mailbox(self.rank).news();
            let alarm = self.exchange();
            if alarm {
                self.alarm()?;
            }
            if !self.ready.is_empty() || self.watch(seen) {
                continue;
            }
            let timeout = self.due.saturating_duration_since(clock());
            if timeout.is_zero() {
                let error = self.late(round);
                return Err(self.group.fail(self.rank, error));
            }
            let group = self.group.clone();
            let mailbox = group.mailbox(self.rank);
            let mail = mailbox.open();
            if mailbox.news() == seen {
                mailbox.sleep(mail, timeout.min(LOOK));
            }
        }
    }

    fn done(&mut self) {}

    fn fail(&mut self, error: Error) -> Error {
        self.group.fail(self.rank, error)
    }

    fn monitor(&mut self) -> Option<&mut dyn Monitor> {
        Some(self)
    }
}

impl Monitor for Endpoint {
    fn failure(&mut self) -> Result<()> {
        self.group.failure(self.rank).map_or(Ok(()), Err)
    }

    fn declare(&mut self) -> Result<()> {
        // The call was recorded in the table when the rank entered it.
        self.failure()
    }

    fn deadline(&self) -> Duration {
        self.options.deadline
    }

    fn complete(&mut self) {
        if let Some(call) = &self.call {
            self.group.calls(|calls| calls.close(call.sequence));
        }
    }
}
