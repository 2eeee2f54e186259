//! Ranks as threads of one process, on real time and real data.

mod endpoint;
mod group;
mod options;

pub(crate) use options::Options;

use super::real_time::RealTime;
use super::{Backend, Clock, GroupId, GroupKey, Member, TaskId};
use crate::transport::{Connection, Pool, SharedMemory};
use crate::{Error, Lost, Rank, Result};
use allfold_base::lock;
use endpoint::Endpoint;
use group::Group;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// All groups and gates of one run.
pub(crate) struct Threads {
    options: Options,
    /// Whether waiting threads poll their mailboxes for a while before they sleep: only if each thread has a core.
    spin: bool,
    pool: Pool,
    groups: Mutex<Groups>,
    time: RealTime,
}

struct Groups {
    /// The groups, each with the number of its ranks that still need it.
    all: BTreeMap<GroupId, (Arc<Group>, u32)>,
    keys: BTreeMap<GroupKey, GroupId>,
    next: GroupId,
}

impl Threads {
    /// A run of `size` ranks; the group of all of them is number 0.
    pub fn new(size: u32, options: Options) -> Threads {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let world = (Arc::new(Group::new(size)), size);
        let groups = Groups { all: [(GroupId(0), world)].into(), keys: BTreeMap::new(), next: GroupId(1) };
        Threads {
            options,
            spin: size as usize <= cores,
            pool: Pool::default(),
            groups: Mutex::new(groups),
            time: RealTime::start(),
        }
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        lock(&self.groups)
    }

    /// The number of gates.
    #[cfg(test)]
    pub fn gates(&self) -> usize {
        self.time.gates()
    }

    fn group(&self, id: GroupId) -> Arc<Group> {
        self.groups().all[&id].0.clone()
    }
}

impl Backend for Threads {
    fn clock(&self) -> &dyn Clock {
        &self.time
    }

    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId> {
        let mut groups = self.groups();
        let next = groups.next;
        let id = *groups.keys.entry(key).or_insert(next);
        if id == next {
            let size = members.len() as u32;
            groups.all.insert(id, (Arc::new(Group::new(size)), size));
            groups.next = GroupId(next.0 + 1);
        }
        Ok(id)
    }

    fn leave(&self, _actor: TaskId, member: Member, operations: u64, cause: Lost) {
        self.group(member.group).leave(member.rank, operations, cause);
    }

    fn release(&self, member: Member) {
        let mut groups = self.groups();
        let Some((_, needed)) = groups.all.get_mut(&member.group) else { return };
        *needed -= 1;
        if *needed == 0 {
            groups.all.remove(&member.group);
            groups.keys.retain(|_, id| *id != member.group);
        }
    }

    fn abort(&self, _actor: TaskId, member: Member, why: String) {
        self.group(member.group).fail(member.rank, Error::Aborted { by: member.rank, why });
    }

    fn survivors(&self, _actor: TaskId, member: Member) -> Result<Vec<Rank>> {
        self.group(member.group).survivors(member.rank, self.options.deadline)
    }

    fn connect(self: Arc<Self>, _actor: TaskId, member: Member) -> Connection {
        let (group, rank) = (self.group(member.group), member.rank);
        let shared = self.options.fused.then(|| {
            // A failure wakes the members of the sync segment, so that they need not poll for one.
            SharedMemory::new(group.sync_segment.clone(), rank, group.size(), Duration::MAX)
        });
        let endpoint = Endpoint::new(group, rank, self.options, self.pool.clone(), self.spin);
        shared.into_iter().fold(Connection::by_messages(endpoint), Connection::sharing)
    }
}
