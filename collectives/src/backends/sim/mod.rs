//! Ranks as threads that carry real data on a virtual clock.
//!
//! ```text
//! rank 0   ..code.. post, post, wait |                 | woken at 7 us ..code..
//! rank 1   ......code...... post, wait |               | woken at 7 us ..code..
//! event loop                            | 5 us .. 7 us  |
//! ```
//!
//! A task's requests carry its own virtual time and are queued, not applied. When every task is blocked in a call of Allfold's, the task
//! that blocked last runs the event loop: requests and events are applied in order of (time, rank, stream, sequence), never in order of
//! arrival; time advances to the next event of the network; the tasks that an instant concerns are woken when all its events are applied.
//! So the same program has the same times and the same bits on any machine, however its threads are scheduled.
//!
//! Messages are timed as in `allfold_timing`, to the picosecond.

mod blame;
mod channels;
mod core;
mod endpoint;
mod event_loop;
mod event_queue;
mod faults;
mod gates;
mod message;
mod options;
mod state;
mod tasks;

pub use options::Activity;
pub(crate) use options::Options;

use self::core::Core;
use super::{Backend, Clock, GateId, GroupId, GroupKey, Member, TaskId};
use crate::transport::Connection;
use crate::{Error, Lost, Rank, Result};
use allfold_sim::Picos;
use endpoint::Endpoint;
use event_queue::ScheduledEvent;
use std::sync::Arc;
use tasks::Wait;

/// A world on virtual time.
pub(crate) struct Sim {
    core: Arc<Core>,
}

impl Sim {
    /// A simulator with one rank for each rank of the topology; all of them form group 0.
    pub fn new(options: Options) -> Sim {
        Sim { core: Arc::new(Core::new(options)) }
    }

    /// The activities of all ranks, in order of ranks and streams.
    pub fn timeline(&self) -> Vec<Activity> {
        let mut timeline = std::mem::take(&mut self.core.lock().timeline);
        timeline.sort_by_key(|activity| (activity.rank, activity.stream, activity.start, activity.end));
        timeline
    }

    /// The hash of all messages that have arrived.
    pub fn event_hash(&self) -> u64 {
        self.core.lock().channels.hash.value()
    }
}

impl Clock for Sim {
    fn now(&self, task: TaskId) -> Picos {
        self.core.lock().tasks.time_of(task)
    }

    fn charge(&self, task: TaskId, work: &allfold_sim::DeviceWork) {
        self.core.lock().charge(task, *work);
    }

    fn advance(&self, task: TaskId, span: Picos) {
        self.core.lock().advance(task, span);
    }

    fn gate(&self) -> GateId {
        self.core.lock().gates.add()
    }

    fn raise(&self, task: TaskId, gate: GateId) {
        self.core.lock().request(task, ScheduledEvent::Raise { task, gate });
    }

    fn pass(&self, task: TaskId, gate: GateId, count: u64) -> Result<()> {
        let mut state = self.core.lock();
        state.request(task, ScheduledEvent::Pass { task, gate, count });
        let state = self.core.block(state, task, Wait::Gate(gate));
        state.broken.clone().map_or(Ok(()), Err)
    }

    fn passed(&self, task: TaskId, gate: GateId, count: u64) -> bool {
        let mut state = self.core.lock();
        state.request(task, ScheduledEvent::Poll { task, gate, count });
        let state = self.core.block(state, task, Wait::Poll);
        state.gates.count(gate) >= count
    }
}

impl Backend for Sim {
    fn spawn(&self, parent: TaskId) -> TaskId {
        self.core.lock().tasks.spawn(parent)
    }

    fn retire(&self, task: TaskId) {
        self.core.lock().retire(task);
    }

    fn clock(&self) -> &dyn Clock {
        self
    }

    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId> {
        Ok(self.core.lock().subgroup(key, members))
    }

    fn leave(&self, task: TaskId, member: Member, operations: u64, cause: Lost) {
        self.core.lock().request(task, ScheduledEvent::Leave { member, operations, cause });
    }

    fn abort(&self, task: TaskId, member: Member, why: String) {
        let error = Error::Aborted { by: member.rank, why };
        let mut state = self.core.lock();
        state.request(task, ScheduledEvent::Fail { task, member, error });
        // The failure is applied before this call returns, so that the rank's next call fails, too, even if it waits for no
        // other rank.
        drop(self.core.block(state, task, Wait::Applied));
    }

    fn survivors(&self, task: TaskId, member: Member) -> Result<Vec<Rank>> {
        let mut state = self.core.lock();
        state.finish(task, false);
        state.request(task, ScheduledEvent::Shrink { member });
        let state = self.core.block(state, task, Wait::Survivors(member));
        state.survivors(member)
    }

    fn connect(self: Arc<Self>, task: TaskId, member: Member) -> Connection {
        Connection::by_messages(Endpoint::new(self.core.clone(), task, member))
    }
}
