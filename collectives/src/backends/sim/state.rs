//! The state of a world on virtual time, under one lock, and the requests of its tasks.

use super::channels::Channels;
use super::event_queue::{EventQueue, ScheduledEvent};
use super::gates::Gates;
use super::options::{Activity, Options};
use super::tasks::{Doing, Entered, Task, Tasks, Wait};
use crate::backends::{GroupId, GroupKey, Member, TaskId};
use crate::contract::CallTable;
use crate::{Call, Error, Operation, Rank};
use allfold_sim::Picos;
use allfold_sim::fault::Paced;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

/// The latest time. Later times are refused, so that sums of times fit in 64 bits.
pub(super) const LAST: u64 = u64::MAX / 4;

/// The ranks of one communicator.
pub(super) struct Group {
    pub calls: CallTable,
    /// The group's members, as ranks of the world.
    pub members: Vec<Rank>,
}

/// The whole state of the world, under one lock.
pub(super) struct State {
    pub options: Options,
    pub now: u64,
    pub tasks: Tasks,
    pub gates: Gates,
    pub groups: Vec<Group>,
    pub keys: BTreeMap<GroupKey, GroupId>,
    pub event_queue: EventQueue,
    /// The deadlines of tasks' operations.
    pub deadlines: BTreeSet<(u64, Rank, u32, TaskId)>,
    pub channels: Channels,
    /// How many tasks are blocked in [`Wait::News`].
    pub polling: u32,
    /// The blocked tasks that an event of this instant woke.
    pub woken: BTreeSet<TaskId>,
    /// The number of times that tasks were woken; tasks that are woken at one instant count once.
    pub progress: u64,
    /// The error that ended the whole world.
    pub broken: Option<Error>,
    pub timeline: Vec<Activity>,
}

impl State {
    pub fn new(options: Options) -> State {
        let ranks = options.topology.ranks();
        let members: Vec<Rank> = (0..ranks).map(Rank).collect();
        let mut state = State {
            now: 0,
            tasks: Tasks::default(),
            gates: Gates::default(),
            groups: vec![Group { calls: CallTable::new(ranks), members: members.clone() }],
            keys: BTreeMap::new(),
            event_queue: EventQueue::default(),
            deadlines: BTreeSet::new(),
            channels: Channels::new(&options),
            polling: 0,
            woken: BTreeSet::new(),
            progress: 0,
            broken: None,
            timeline: Vec::new(),
            options,
        };
        for rank in members {
            state.tasks.add(rank, 0, 0);
        }
        for (rank, at) in state.options.faults.deaths_by_clock(ranks) {
            state.event_queue.event(at.0, ScheduledEvent::Die { rank });
        }
        state
    }

    pub fn retire(&mut self, task: TaskId) {
        if mem::replace(&mut self.tasks.at(task).doing, Doing::Gone) == Doing::Running {
            self.stop_one();
        }
    }

    pub fn advance(&mut self, task: TaskId, span: Picos) {
        let now = &mut self.tasks.at(task).now;
        *now = now.saturating_add(span.0).min(LAST);
    }

    pub fn charge(&mut self, task: TaskId, work: allfold_sim::DeviceWork) {
        let rank = self.tasks.at(task).rank;
        let span = self.options.faults.compute(rank, &self.options.device, work);
        let nth = self.tasks.at(task).computed;
        self.tasks.at(task).computed += 1;
        let span = self.takes_about(task, Paced::Compute, nth, span);
        let start = self.tasks.at(task).now;
        self.tasks.at(task).now = start.saturating_add(span.0).min(LAST);
        self.record(task, start, || "compute".into());
    }

    fn record(&mut self, task: TaskId, start: u64, what: impl FnOnce() -> String) {
        if self.options.timeline {
            let Task { rank, stream, now, sent, .. } = self.tasks.at(task);
            let (start, end) = (Picos(start), Picos(*now));
            let activity =
                Activity { rank: *rank, stream: *stream, what: what(), start, end, sent: mem::take(sent) };
            self.timeline.push(activity);
        }
    }

    pub fn subgroup(&mut self, key: GroupKey, members: &[Rank]) -> GroupId {
        let next = GroupId(self.groups.len() as u32);
        let id = *self.keys.entry(key).or_insert(next);
        if id == next {
            let parent = &self.groups[key.parent.0 as usize].members;
            let world: Vec<Rank> = members.iter().map(|rank| parent[rank.index()]).collect();
            self.groups.push(Group { calls: CallTable::new(world.len() as u32), members: world });
        }
        id
    }

    /// Queues a request at the task's time.
    pub fn request(&mut self, task: TaskId, due: ScheduledEvent) {
        self.request_after(task, Picos::ZERO, due);
    }

    fn request_after(&mut self, task: TaskId, after: Picos, due: ScheduledEvent) {
        let of = self.tasks.at(task);
        of.requests += 1;
        let (time, rank, stream, requests) =
            (of.now.saturating_add(after.0), of.rank, of.stream, of.requests);
        self.event_queue.request(time, rank, stream, requests, due);
    }

    /// The task enters an operation: the call table records the operation now, and its first step can start after the launch.
    pub fn enter(&mut self, task: TaskId, member: Member, call: &Arc<Call>) -> Result<(), Error> {
        self.finish(task, false);
        if let Some(error) = self.failure(member) {
            return Err(error);
        }
        self.request(task, ScheduledEvent::Enter { member, call: call.clone() });
        let rank = self.tasks.at(task).rank;
        let launch = self.options.faults.costs(rank, &self.options.costs).launch;
        let launch = self.takes_about(task, Paced::Launch, call.sequence, launch);
        let deadline = self.options.deadline;
        let of = self.tasks.at(task);
        of.operation += 1;
        of.sent = 0;
        of.inbox.clear();
        let (start, due) = (of.now, deadline.map(|deadline| of.now.saturating_add(deadline.0)));
        if call.operation != Operation::PointToPoint {
            of.now = of.now.saturating_add(launch.0);
        }
        of.entered = Some(Entered { member, call: call.clone(), start, due });
        let (rank, stream) = (of.rank, of.stream);
        self.deadlines.extend(due.map(|due| (due, rank, stream, task)));
        Ok(())
    }

    /// The task's operation is over.
    pub fn finish(&mut self, task: TaskId, done: bool) {
        let of = self.tasks.at(task);
        let (rank, stream) = (of.rank, of.stream);
        if let Some(Entered { call, start, due, .. }) = of.entered.take() {
            due.map(|due| self.deadlines.remove(&(due, rank, stream, task)));
            if done {
                self.record(task, start, || call.to_string());
            }
        }
    }

    /// The time of a copy or reduction within the task's rank.
    pub fn local(&mut self, task: TaskId, bytes: usize, reduced: bool) -> Picos {
        let rank = self.tasks.at(task).rank;
        let bytes = allfold_sim::Bytes(bytes as u64);
        let span = self.options.faults.costs(rank, &self.options.costs).local(bytes, reduced);
        self.takes(task, span)
    }

    /// Schedules the event that ends a local copy or reduction.
    pub fn move_ends(&mut self, task: TaskId, after: Picos, round: u64) {
        let half = self.tasks.half(task);
        self.request_after(task, after, ScheduledEvent::Moved { half, round });
    }

    /// The error that ends a member's operations; `None` while it can continue.
    pub fn failure(&self, member: Member) -> Option<Error> {
        let Group { calls, members } = &self.groups[member.group.0 as usize];
        if self.channels.transit.is_dead(members[member.rank.index()]) {
            return Some(calls.lost(member.rank));
        }
        self.broken.clone().or_else(|| calls.failure(member.rank))
    }

    /// The survivors of a member's group.
    pub fn survivors(&self, member: Member) -> Result<Vec<Rank>, Error> {
        let undecided = || Err(self.broken.clone().unwrap_or(Error::Deadlock { waits: Vec::new() }));
        self.groups[member.group.0 as usize].calls.survivors(member.rank).unwrap_or_else(undecided)
    }

    /// Blocks the task. If no other task runs, the event loop runs.
    pub fn block(&mut self, task: TaskId, wait: Wait) {
        self.tasks.at(task).doing = Doing::Blocked(wait);
        self.stop_one();
    }

    fn stop_one(&mut self) {
        self.tasks.running -= 1;
        if self.tasks.running == 0 {
            self.run_events();
        }
    }
}
