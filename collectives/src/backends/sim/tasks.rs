//! The tasks of a world on virtual time: their clocks, and what each is doing.

use super::message::Half;
use crate::backends::{GateId, GroupId, Member, TaskId};
use crate::transport::Event;
use crate::{Call, Rank};
use allfold_sim::Picos;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar};

/// The call in which a task is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The task waits for an event of its posts in a group; `round` is that of its oldest unfinished step.
    Posts { group: GroupId, round: u64 },
    /// The task waits at a gate.
    Gate(GateId),
    /// The task waits until its check of a gate has been applied.
    Poll,
    /// The task waits for any event of its rank, after a check found nothing.
    News,
    /// The task waits until its request has been applied.
    Applied,
    /// The task waits for the survivors of its group.
    Survivors(Member),
}

/// What a task is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Running,
    Blocked(Wait),
    Gone,
}

/// A task of the world and its clock.
pub(super) struct Task {
    pub rank: Rank,
    pub stream: u32,
    pub now: u64,
    pub requests: u64,
    pub doing: Doing,
    pub inbox: VecDeque<Event>,
    pub waker: Arc<Condvar>,
    /// The number of operations entered so far. Events of earlier operations are ignored.
    pub operation: u64,
    /// The number of computations so far.
    pub computed: u64,
    /// Bytes of the messages that were sent in the current operation.
    pub sent: u64,
    pub entered: Option<Entered>,
}

/// The operation that a task is in.
pub(super) struct Entered {
    pub member: Member,
    pub call: Arc<Call>,
    pub start: u64,
    pub due: Option<u64>,
}

/// All tasks, and the number of those that run.
#[derive(Default)]
pub(super) struct Tasks {
    all: Vec<Task>,
    pub running: u32,
}

impl Tasks {
    /// Adds a task, which counts as running, because its thread is about to start.
    pub fn add(&mut self, rank: Rank, stream: u32, now: u64) -> TaskId {
        self.running += 1;
        self.all.push(Task {
            rank,
            stream,
            now,
            requests: 0,
            doing: Doing::Running,
            inbox: VecDeque::new(),
            waker: Arc::default(),
            operation: 0,
            computed: 0,
            sent: 0,
            entered: None,
        });
        TaskId(self.all.len() as u32 - 1)
    }

    /// Adds another task of the same rank at the parent's time.
    pub fn spawn(&mut self, parent: TaskId) -> TaskId {
        let (rank, now) = (self.at(parent).rank, self.at(parent).now);
        let stream = self.all.iter().filter(|task| task.rank == rank).count() as u32;
        self.add(rank, stream, now)
    }

    pub fn at(&mut self, TaskId(id): TaskId) -> &mut Task {
        &mut self.all[id as usize]
    }

    pub fn time_of(&self, TaskId(id): TaskId) -> Picos {
        Picos(self.all[id as usize].now)
    }

    pub fn is_running(&self, TaskId(id): TaskId) -> bool {
        self.all[id as usize].doing == Doing::Running
    }

    /// The identity of the half that a task posts now.
    pub fn half(&mut self, task: TaskId) -> Half {
        Half { task, operation: self.at(task).operation }
    }

    /// The tasks for which `which` is true, in order of ranks and streams.
    pub fn filter(&self, which: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let mut found: Vec<(Rank, u32, TaskId)> = (0..)
            .zip(&self.all)
            .filter(|(_, of)| which(of))
            .map(|(id, of)| (of.rank, of.stream, TaskId(id)))
            .collect();
        found.sort();
        found.into_iter().map(|(_, _, task)| task).collect()
    }
}
