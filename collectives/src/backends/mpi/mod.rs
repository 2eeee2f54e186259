//! Ranks as processes of an MPI job, for clusters that already have MPI: any algorithm of the table by MPI's sends and
//! receives, with the schedule's bits, or MPI's own collectives.
//!
//! ```text
//! mpirun -n 4 program     Communicator::over_mpi(mpi::Options::default())
//!
//! Mpi --- Group      MPI's communicator; announced calls, departures and the first error, as control messages with tag 0
//!     |-- Endpoint   a schedule's messages: tag = lane, in the order in which MPI keeps them
//!     \-- native     MPI_Iallreduce and similar functions, if [`Options::native`] is set
//! ```
//!
//! # What failure means here
//! MPI itself reports no lost rank: when a process dies, `mpirun` ends the job. Until then, and after every other failure,
//! each call returns by its deadline, with the right result or an error that names the operation and the ranks in
//! question:
//!
//! | what | scheduled | native |
//! |---|---|---|
//! | ranks that make different calls | [`Error::Mismatch`] with both calls | the deadline; for equal sizes an undefined result |
//! | a rank that returns early or panics | [`Error::PeerLost`] with its number | the same |
//! | a rank that does not call | [`Error::DeadlineExceeded`] with the ranks that are waited for | the same |
//! | a message that does not fit | [`Error::Protocol`] | the error that MPI reports |
//!
//! Memory that MPI still holds when a call fails is leaked, never used again. After a failure there is no `shrink`, MPI is
//! not finalised, and `mpirun` ends the job when the first process exits. Splitting has no deadline of its own.
//!
//! MPI must be built for `MPI_THREAD_MULTIPLE`, as Debian's Open MPI is. A process can start MPI only once.

mod endpoint;
#[allow(unsafe_code, reason = "MPI is a foreign library; each call states why it is sound")]
mod foreign;
mod group;
mod native;
mod node;

pub use node::Options;

use super::real_time::RealTime;
use super::{Backend, Clock, GroupId, GroupKey, Member, TaskId};
use crate::contract::deadline::clock;
use crate::transport::{Connection, Pool};
use crate::{Error, Lost, Rank, Result};
use allfold_base::lock;
use endpoint::Endpoint;
use group::Group;
use node::{Node, nap};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long ranks wait for each other at the end of a job that succeeded.
const PARTING: Duration = Duration::from_secs(60);

/// The bit that marks the tasks of communication threads.
const STREAM: u32 = 1 << 31;

/// This process as a rank of an MPI job.
pub(crate) struct Mpi {
    node: Arc<Node>,
    groups: Mutex<Groups>,
    time: RealTime,
    over: AtomicBool,
    /// The number of communication threads that have not ended.
    streams: AtomicU32,
}

struct Groups {
    all: Vec<Arc<Group>>,
    keys: BTreeMap<GroupKey, GroupId>,
}

impl Mpi {
    /// Starts MPI. Returns the process, its rank and the number of ranks.
    pub fn start(options: Options) -> Result<(Mpi, Rank, u32)> {
        let time = RealTime::start();
        let world = foreign::start()?;
        let (rank, size) = (world.rank(), world.size());
        let node = Arc::new(Node { options, pool: Pool::default() });
        let world = Arc::new(Group::new(Ok(world), node.pool.clone()));
        let groups = Mutex::new(Groups { all: vec![world], keys: BTreeMap::new() });
        Ok((Mpi { node, groups, time, over: AtomicBool::new(false), streams: AtomicU32::new(0) }, rank, size))
    }

    fn groups<R>(&self, look: impl FnOnce(&mut Groups) -> R) -> R {
        look(&mut lock(&self.groups))
    }

    fn group(&self, GroupId(id): GroupId) -> Arc<Group> {
        self.groups(|groups| groups.all[id as usize].clone())
    }

    /// Waits for the other ranks at the end and ends MPI, unless a failure was recorded.
    fn part(&self) -> Result<()> {
        let until = clock() + PARTING;
        while self.streams.load(Ordering::Acquire) > 0 && clock() < until {
            nap(Duration::from_micros(200));
        }
        let all = self.groups(|groups| groups.all.clone());
        all.iter().try_for_each(|group| group.listen())?;
        let mut barrier = all[0].comm()?.barrier()?;
        while barrier.test()?.is_none() || !all.iter().all(|group| group.is_sent()) {
            all.iter().try_for_each(|group| group.listen())?;
            if clock() > until {
                return Err(Error::System("the other ranks did not reach the end of the job".into()));
            }
            std::thread::yield_now();
        }
        // Receives the other ranks' last messages, so that none is left unreceived.
        all.iter().try_for_each(|group| group.listen())?;
        foreign::finish()
    }
}

impl Backend for Mpi {
    fn spawn(&self, parent: TaskId) -> TaskId {
        self.streams.fetch_add(1, Ordering::AcqRel);
        TaskId(parent.0 | STREAM)
    }

    fn retire(&self, task: TaskId) {
        if task.0 & STREAM != 0 {
            self.streams.fetch_sub(1, Ordering::AcqRel);
        } else if !self.over.swap(true, Ordering::Relaxed) {
            // After a failure `mpirun` ends the job.
            let _ = self.part();
        }
    }

    fn clock(&self) -> &dyn Clock {
        &self.time
    }

    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId> {
        if let Some(known) = self.groups(|groups| groups.keys.get(&key).copied()) {
            return Ok(known);
        }
        // The lock is not held here: the communication threads of this rank continue, and other ranks may wait for them.
        let tag = (key.sequence ^ u64::from(key.color) << 7) as u16;
        let comm = self.group(key.parent).comm().and_then(|parent| parent.part(members, tag));
        let group = Arc::new(Group::new(comm, self.node.pool.clone()));
        self.groups(|groups| {
            let id = GroupId(groups.all.len() as u32);
            groups.all.push(group);
            groups.keys.insert(key, id);
            Ok(id)
        })
    }

    fn leave(&self, _actor: TaskId, member: Member, operations: u64, cause: Lost) {
        self.group(member.group).leave(operations, &cause);
    }

    fn abort(&self, _actor: TaskId, member: Member, why: String) {
        self.group(member.group).fail(Error::Aborted { by: member.rank, why });
    }

    fn survivors(&self, _actor: TaskId, _member: Member) -> Result<Vec<Rank>> {
        Err(Error::System("ranks over MPI cannot continue after a failure: mpirun ends the job".into()))
    }

    fn connect(self: Arc<Self>, _actor: TaskId, member: Member) -> Connection {
        Connection::by_messages(Endpoint::new(self.node.clone(), self.group(member.group)))
    }
}
