//! Backends: where ranks run.
//!
//! ```text
//! Communicator --- Backend: tasks, gates, groups --- threads   real time, mailboxes, shared memory
//!      |              |                          |--- tcp       real time, sockets; messages within a host by memory
//!      |              |                          |--- mpi       real time, another library's engine
//!      |              |                          \--- sim       virtual time, one event loop
//!  Prepared ----- Connection: messages, and shared memory in addition
//! ```
//!
//! `shm` is not a backend: it adds shared memory for collectives between ranks of one host, over any backend on real time.
//!
//! A *task* is a thread that acts for a rank: the rank's own code or one of its communication threads. A *gate* is a counter
//! that tasks wait on; asynchronous work is handed over through gates.

mod codec;
#[cfg(feature = "mpi")]
pub mod mpi;
mod real_time;
pub(crate) mod shm;
pub(crate) mod sim;
pub mod tcp;
pub(crate) mod threads;

pub use allfold_net::{Host, SegmentHandle};

use crate::transport::Connection;
use crate::{Lost, Rank, Result};
use allfold_sim::Picos;
use std::sync::Arc;

/// The number of a task: a thread that acts for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskId(pub u32);

/// A time stamp in the clock's own units, which is cheaper to read than a time. A [`Scale`] converts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(pub u64);

/// Converts a clock's stamps to times: a number of picoseconds per number of ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub picos: u64,
    pub count: u64,
}

impl Scale {
    /// The scale of stamps that already are times.
    pub const SAME: Scale = Scale { picos: 1, count: 1 };

    pub fn time(self, Stamp(stamp): Stamp) -> Picos {
        Picos((u128::from(stamp) * u128::from(self.picos) / u128::from(self.count)) as u64)
    }
}

/// The number of a counter that tasks can wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GateId(pub u32);

/// The number of a group: the ranks of one communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupId(pub u32);

/// A rank's membership in a group, with which it enters operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub group: GroupId,
    pub rank: Rank,
}

/// The key of a subgroup, equal on all its ranks: the parent, its operation, the color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub parent: GroupId,
    pub sequence: u64,
    pub color: u32,
}

/// The clock and the gates. A method with a task may be called by that task's thread only.
pub(crate) trait Clock: Send + Sync {
    /// The task's time since the start: real, or virtual.
    fn now(&self, task: TaskId) -> Picos;
    /// The current time as a stamp, which a [`Scale`] converts.
    fn stamp(&self, task: TaskId) -> Stamp {
        Stamp(self.now(task).0)
    }
    /// The scale of stamps taken up to now. Any thread may call this. Conversion by one scale retains the order of stamps.
    fn scale(&self) -> Scale {
        Scale::SAME
    }
    /// Accounts for computation of the task. On virtual time the computation takes the time that the device model gives; in real time
    /// this does nothing.
    fn charge(&self, task: TaskId, work: &allfold_sim::DeviceWork);
    /// Advances the task's virtual time; in real time this does nothing.
    fn advance(&self, _task: TaskId, _span: Picos) {}

    /// Makes a gate with count 0.
    fn gate(&self) -> GateId;
    /// Adds one to a gate's count.
    fn raise(&self, task: TaskId, gate: GateId);
    /// Waits until a gate's count is `count` or more.
    fn pass(&self, task: TaskId, gate: GateId, count: u64) -> Result<()>;
    /// Frees a gate that no task uses any more. On virtual time gates are retained until the run ends.
    fn discard(&self, _gate: GateId) {}
    /// Whether a gate's count is `count` or more.
    fn passed(&self, task: TaskId, gate: GateId, count: u64) -> bool;
}

/// A backend as a communicator needs it. A method with a task, except `abort`, may be called by that task's thread only.
pub(crate) trait Backend: Send + Sync {
    /// The task of a world rank's own code.
    fn main(&self, world: Rank) -> TaskId {
        TaskId(world.0)
    }
    /// A task for a communication thread of `parent`'s rank: the same where the backend need not tell them apart.
    fn spawn(&self, parent: TaskId) -> TaskId {
        parent
    }
    /// Ends a task: its thread ends. For the task of a rank's own code, the rank has returned.
    fn retire(&self, _task: TaskId) {}

    /// The backend's clock and gates.
    fn clock(&self) -> &dyn Clock;

    /// The group of these members (as ranks of the parent) under a key. The first call makes the group; a rank uses a key once.
    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId>;
    /// A member leaves its group after it has entered `operations` operations.
    fn leave(&self, task: TaskId, member: Member, operations: u64, cause: Lost);
    /// A member that has left frees its part of the group. Any thread may call this.
    fn release(&self, _member: Member) {}
    /// Fails a group on behalf of a member. On real time any thread may call this.
    fn abort(&self, task: TaskId, member: Member, why: String);
    /// The survivors of a failed group: waits until every member has called this or has left, or until the deadline. All
    /// callers get the same answer.
    fn survivors(&self, task: TaskId, member: Member) -> Result<Vec<Rank>>;
    /// The tagged messages of a member; `None` where the backend has none.
    fn messages(self: Arc<Self>, _member: Member) -> Option<tcp::Messages> {
        None
    }
    /// Sets the deadline of this process's operations. `false` where the backend's deadline cannot be changed.
    fn set_deadline(&self, _deadline: std::time::Duration) -> bool {
        false
    }
    /// A member's connection to its peers.
    fn connect(self: Arc<Self>, task: TaskId, member: Member) -> Connection;
}
