//! Where ranks run.
//!
//! ```text
//! Communicator --- Backend: tasks, gates, groups --- threads   real time, mailboxes, shared memory
//!      |              |                          |--- tcp       real time, sockets; messages within a host by memory
//!      |              |                          |--- mpi       real time, another library's engine
//!      |              |                          \--- sim       virtual time, one event loop
//!  Prepared ----- Connection: messages, and shared memory beside them
//! ```
//!
//! `shm` is no backend: it gives the processes of one host, whichever of these connects them, memory for collectives.
//!
//! A *task* is a thread that takes part for a rank: its own code, or one of its communication threads. A *gate*
//! counts, and lets pass whoever waits for a count; asynchronous work is handed over through gates.

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

/// A thread that takes part for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskId(pub u32);

/// A time as a task's clock keeps it, which reads it sooner than it tells it: a [`Scale`] says which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(pub u64);

/// What times a clock's stamps are: so many picoseconds for so many of what it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub picos: u64,
    pub count: u64,
}

impl Scale {
    /// Of stamps that are times.
    pub const SAME: Scale = Scale { picos: 1, count: 1 };

    pub fn time(self, Stamp(stamp): Stamp) -> Picos {
        Picos((u128::from(stamp) * u128::from(self.picos) / u128::from(self.count)) as u64)
    }
}

/// A count that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GateId(pub u32);

/// The ranks of one communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupId(pub u32);

/// A rank's place in a group: what an operation is entered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub group: GroupId,
    pub rank: Rank,
}

/// What makes two ranks' wishes for a smaller group the same group: the parent, its operation, the colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub parent: GroupId,
    pub sequence: u64,
    pub color: u32,
}

/// Time, and who waits for what. Every method with a task may be called by its own thread only.
pub(crate) trait Clock: Send + Sync {
    /// The task's time since the start: real, or virtual.
    fn now(&self, task: TaskId) -> Picos;
    /// The same, to be kept for a [`Scale`].
    fn stamp(&self, task: TaskId) -> Stamp {
        Stamp(self.now(task).0)
    }
    /// What times the stamps up to now are. Any thread may ask. By one scale stamps keep their order.
    fn scale(&self) -> Scale {
        Scale::SAME
    }
    /// The task computes. On virtual time that takes what the device model says; in real time it is no news.
    fn charge(&self, task: TaskId, work: &allfold_sim::DeviceWork);

    /// A new gate, at count 0.
    fn gate(&self) -> GateId;
    /// Adds one to a gate's count.
    fn raise(&self, task: TaskId, gate: GateId);
    /// Waits until a gate's count is `count` or more.
    fn pass(&self, task: TaskId, gate: GateId, count: u64) -> Result<()>;
    /// Nobody asks for this gate again: what it holds is given back. On virtual time gates are kept until the run ends.
    fn discard(&self, _gate: GateId) {}
    /// Whether a gate's count is `count` or more.
    fn passed(&self, task: TaskId, gate: GateId, count: u64) -> bool;
}

/// What a communicator needs of the place where it runs. Every method may be called by the task's own thread only.
pub(crate) trait Backend: Send + Sync {
    /// The task of a world rank's own code.
    fn main(&self, world: Rank) -> TaskId;
    /// A communication thread's task, beside `parent`.
    fn spawn(&self, parent: TaskId) -> TaskId;
    /// The task's thread ends. For a rank's own code: the rank has returned.
    fn retire(&self, task: TaskId);

    /// Its time and its gates.
    fn clock(&self) -> &dyn Clock;

    /// The group of these members (as ranks of the parent) under a key, which a rank names once; made by whoever asks
    /// first.
    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId>;
    /// A member leaves its group after it entered `operations` operations.
    fn leave(&self, task: TaskId, member: Member, operations: u64, cause: Lost);
    /// A member that has left needs its group no more. Any thread may say so.
    fn release(&self, _member: Member) {}
    /// Fails a group on behalf of a member.
    fn abort(&self, task: TaskId, member: Member, why: String);
    /// Who of a failed group goes on: waits until every member has asked or has left, or its deadline. All who get an
    /// answer get the same.
    fn survivors(&self, task: TaskId, member: Member) -> Result<Vec<Rank>>;
    /// A member's ways to its peers.
    fn connect(self: Arc<Self>, task: TaskId, member: Member) -> Connection;
}
