//! The event loop. It runs while every task is blocked, applies events in order of time, and wakes tasks.

use super::channels::News;
use super::event_queue::ScheduledEvent;
use super::message::{Channel, Half};
use super::state::{LAST, State};
use super::tasks::{Doing, Entered, Task, Wait};
use crate::backends::{GroupId, Member, TaskId};
use crate::contract::CallTable;
use crate::transport::Event;
use crate::{Error, Lost, Operation, Rank};
use allfold_sim::Picos;
use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

impl State {
    /// Applies events in order of time until a task has to run again.
    pub fn run_events(&mut self) {
        loop {
            while let Some(due) = self.event_queue.take(self.now) {
                self.apply(due);
            }
            if !self.woken.is_empty() {
                return self.release();
            }
            let (transit, faults) = (&mut self.channels.transit, &self.options.faults);
            transit.settle(faults, Picos(self.now));
            let next = transit.next(faults, self.event_queue.next().map(Picos)).map(|next| next.0);
            let late = self.deadlines.first().copied();
            match (next, late) {
                (Some(next), Some(late)) if late.0 < next => {
                    self.now = self.now.max(late.0);
                    self.deadlines.remove(&late);
                    self.expire(late.3);
                }
                (Some(next), _) if next > LAST => {
                    self.broken.get_or_insert(Error::Endless);
                    for task in self.tasks.filter(|of| matches!(of.doing, Doing::Blocked(_))) {
                        self.wake(task);
                    }
                    return self.release();
                }
                (Some(next), _) => {
                    self.now = next;
                    let mut report = Vec::new();
                    self.channels.left(next, &self.options, &mut self.event_queue, &mut report);
                    report.into_iter().for_each(|news| self.report(news));
                }
                // If fault rules are not steady, a waiting rank gets an error at its deadline.
                (None, Some(late)) if self.channels.transit.faults.is_some() => {
                    self.now = self.now.max(late.0);
                    self.deadlines.remove(&late);
                    self.expire(late.3);
                }
                (None, _) if self.stalled() => {}
                (None, _) => return,
            }
        }
    }

    /// Lets the tasks run that an event of this instant has woken.
    fn release(&mut self) {
        self.progress += 1;
        for task in mem::take(&mut self.woken) {
            let now = self.now;
            let of = self.tasks.at(task);
            let polled = mem::replace(&mut of.doing, Doing::Running) == Doing::Blocked(Wait::News);
            of.now = of.now.max(now);
            of.waker.notify_all();
            self.polling -= u32::from(polled);
            self.tasks.running += 1;
        }
    }

    pub(super) fn wake(&mut self, task: TaskId) {
        if !matches!(self.tasks.at(task).doing, Doing::Blocked(_)) {
            return;
        }
        self.woken.insert(task);
        self.wake_pollers(task);
    }

    /// After an event of a task: tasks of the same rank that poll check again.
    fn wake_pollers(&mut self, task: TaskId) {
        if self.polling == 0 {
            return;
        }
        let rank = self.tasks.at(task).rank;
        let polls = |of: &Task| of.rank == rank && of.doing == Doing::Blocked(Wait::News);
        self.woken.extend(self.tasks.filter(polls));
    }

    fn apply(&mut self, due: ScheduledEvent) {
        match due {
            ScheduledEvent::Flow(message) => self.channels.flow(message, self.now),
            ScheduledEvent::Arrive(message) => {
                let news = self.channels.arrived(message, self.now);
                news.into_iter().for_each(|news| self.report(news));
            }
            ScheduledEvent::Die { rank } => self.die(rank),
            ScheduledEvent::Moved { half, round } => self.deliver(half, Event::Moved { round }),
            ScheduledEvent::Enter { member, call } => {
                let point_to_point = call.operation == Operation::PointToPoint;
                if !point_to_point && self.calls(member.group).enter(member.rank, &call).is_err() {
                    self.alarm(member.group);
                }
            }
            ScheduledEvent::Send { half, .. } | ScheduledEvent::Receive { half, .. }
                if self.posts_in_vain(half) => {}
            ScheduledEvent::Send { half, member, to, lane, frame } => {
                let channel = (member.group, member.rank, to, lane);
                let ends = self.ends(channel);
                let (options, queue) = (&self.options, &mut self.event_queue);
                self.channels.send(channel, ends, (half, frame), self.now, options, queue);
                self.fail_orphaned(channel);
            }
            ScheduledEvent::Receive { half, member, from, lane, reduced } => {
                let channel = (member.group, from, member.rank, lane);
                let ends = self.ends(channel);
                let (options, queue) = (&self.options, &mut self.event_queue);
                self.channels.receive(channel, ends, (half, reduced), self.now, options, queue);
                self.fail_orphaned(channel);
            }
            ScheduledEvent::Raise { task, gate } => {
                self.gates.raise(gate).into_iter().for_each(|task| self.wake(task));
                self.wake_pollers(task);
            }
            ScheduledEvent::Pass { task, gate, count }
                if self.broken.is_none() && self.gates.count(gate) < count =>
            {
                self.gates.wait(gate, task, count);
            }
            ScheduledEvent::Poll { task, gate, count }
                if self.broken.is_none() && self.gates.count(gate) < count =>
            {
                self.tasks.at(task).doing = Doing::Blocked(Wait::News);
                self.polling += 1;
            }
            ScheduledEvent::Pass { task, .. } | ScheduledEvent::Poll { task, .. } => self.wake(task),
            ScheduledEvent::Leave { member, operations, cause } => {
                self.leave(member, operations, cause);
            }
            ScheduledEvent::Shrink { member } => {
                self.calls(member.group).shrink(member.rank);
                self.alarm(member.group);
                self.decided(member.group);
            }
            ScheduledEvent::Fail { task, member, error } => {
                self.calls(member.group).fail(member.rank, error);
                self.alarm(member.group);
                if self.tasks.at(task).doing == Doing::Blocked(Wait::Applied) {
                    self.wake(task);
                }
            }
        }
    }

    /// A member leaves its group: ranks that still need it get an error.
    fn leave(&mut self, member: Member, operations: u64, cause: Lost) {
        if self.calls(member.group).leave(member.rank, operations, cause).is_err() {
            self.alarm(member.group);
        }
        self.decided(member.group);
        let point_to_point = self.channels.point_to_point(member.group, member.rank);
        point_to_point.into_iter().for_each(|channel| self.fail_orphaned(channel));
    }

    pub(super) fn calls(&mut self, GroupId(group): GroupId) -> &mut CallTable {
        &mut self.groups[group as usize].calls
    }

    /// The two ends of a channel, as ranks of the world.
    fn ends(&self, (GroupId(group), from, to, _): Channel) -> (Rank, Rank) {
        let members = &self.groups[group as usize].members;
        (members[from.index()], members[to.index()])
    }

    /// Whether the rank that posts a half has died, so that the half is ignored.
    fn posts_in_vain(&mut self, half: Half) -> bool {
        let rank = self.tasks.at(half.task).rank;
        self.channels.transit.is_dead(rank)
    }

    fn report(&mut self, news: News) {
        match news {
            News::Damaged { half, from, frame, sums } => {
                self.damaged(half, from, frame.round, &frame.call, sums)
            }
            News::Left { half, to, lane } => self.deliver(half, Event::Sent { to, lane }),
            News::Arrived { half, from, lane, frame } => {
                self.deliver(half, Event::Received { from, lane, frame });
            }
        }
    }

    fn deliver(&mut self, half: Half, event: Event) {
        let of = self.tasks.at(half.task);
        if of.operation == half.operation && of.entered.is_some() {
            of.inbox.push_back(event);
            self.wake(half.task);
        }
    }

    /// Wakes every task that waits for its posts in a group.
    pub(super) fn alarm(&mut self, group: GroupId) {
        let waits =
            |of: &Task| matches!(of.doing, Doing::Blocked(Wait::Posts { group: of, .. }) if of == group);
        for task in self.tasks.filter(waits) {
            self.wake(task);
        }
    }

    /// Wakes the tasks that requested a group's survivors, once decided.
    fn decided(&mut self, group: GroupId) {
        let waits = |of: &Task| matches!(of.doing, Doing::Blocked(Wait::Survivors(m)) if m.group == group);
        for task in self.tasks.filter(waits) {
            if let Doing::Blocked(Wait::Survivors(member)) = self.tasks.at(task).doing
                && self.calls(group).survivors(member.rank).is_some()
            {
                self.wake(task);
            }
        }
    }

    /// A point-to-point message whose other side has left never arrives: its group fails.
    pub(super) fn fail_orphaned(&mut self, channel: Channel) {
        let Some((half, me, peer)) = self.channels.half_posted(channel) else { return };
        if !self.calls(channel.0).has_left(peer) {
            return;
        }
        let call = self.tasks.at(half.task).entered.as_ref().map(|entered| entered.call.clone());
        self.calls(channel.0).lose(me, peer, call.as_deref());
        self.alarm(channel.0);
    }

    /// An operation's deadline has passed.
    fn expire(&mut self, task: TaskId) {
        let half = self.tasks.half(task);
        let of = self.tasks.at(task);
        let round = match of.doing {
            Doing::Blocked(Wait::Posts { round, .. }) => round,
            _ => 0,
        };
        let Some(Entered { member, call, .. }) = &of.entered else { return };
        let (member, call) = (*member, call.clone());
        let mut waiting_on = match call.operation {
            Operation::PointToPoint => Vec::new(),
            _ => self.calls(member.group).absent(call.sequence),
        };
        let entered = waiting_on.is_empty();
        let (mut rank, mut round) = (member.rank, round);
        if entered && self.channels.transit.faults.is_some() {
            (rank, waiting_on, round) = self.blame(task);
        } else if entered {
            waiting_on = self.channels.peers(half).into_iter().collect();
        }
        let after = self.options.deadline.map_or(Duration::ZERO, |span| Duration::from_nanos(span.0 / 1_000));
        let call = Box::new(call.as_ref().clone());
        let error = Error::DeadlineExceeded { rank, waiting_on, entered, call, round, after };
        self.calls(member.group).fail(member.rank, error);
        self.alarm(member.group);
    }

    /// Called if every task is blocked and no event is pending. Returns whether a task could be given survivors or an error.
    fn stalled(&mut self) -> bool {
        let blocked = self.tasks.filter(|of| matches!(of.doing, Doing::Blocked(_)));
        let mut waits = Vec::new();
        let mut groups = BTreeSet::new();
        // A rank that has not requested to shrink by now never will.
        for task in blocked.iter().copied() {
            if let Doing::Blocked(Wait::Survivors(member)) = self.tasks.at(task).doing {
                self.calls(member.group).decide();
                self.decided(member.group);
            }
        }
        if !self.woken.is_empty() {
            return true;
        }
        for task in blocked.iter().copied() {
            let half = self.tasks.half(task);
            let of = self.tasks.at(task);
            if let (Doing::Blocked(Wait::Posts { group, round }), Some(entered)) = (of.doing, &of.entered) {
                let (rank, call) = (entered.member.rank, entered.call.clone());
                let peers: Vec<String> = self.channels.peers(half).iter().map(Rank::to_string).collect();
                waits.push(format!(
                    "rank {rank} waits for rank {} in {call}, round {round}",
                    peers.join(", ")
                ));
                groups.insert(group);
            }
        }
        let error = Error::Deadlock { waits };
        for group in groups.iter().copied() {
            self.calls(group).fail(Rank(0), error.clone());
            self.alarm(group);
        }
        if groups.is_empty() && !blocked.is_empty() {
            // Only a bug of this crate leads here. Waiting ranks get this error instead of waiting for ever.
            self.broken.get_or_insert(error);
            blocked.into_iter().for_each(|task| self.wake(task));
        }
        !self.woken.is_empty()
    }

    /// A rank has been busy outside of Allfold's calls for too long: every task gets an error that names it.
    pub fn give_up(&mut self, after: Duration) {
        let busy = self.tasks.filter(|of| of.doing == Doing::Running);
        let waiting_on = busy.into_iter().map(|task| self.tasks.at(task).rank).collect();
        self.broken.get_or_insert(Error::Unresponsive { waiting_on, after });
        for task in self.tasks.filter(|of| matches!(of.doing, Doing::Blocked(_))) {
            self.wake(task);
        }
        self.release();
    }
}
