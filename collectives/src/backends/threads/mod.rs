//! Ranks as threads of one process, on real time and real data.

mod endpoint;
mod group;
mod together;

use super::real_time::RealTime;
use super::{ActorId, Backend, Clock, GroupId, GroupKey, Member};
use crate::transport::{Pool, Transport};
use crate::{Error, Lost, Rank, Result};
use endpoint::Endpoint;
use group::Group;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What can be chosen about ranks as threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How long an operation may take.
    pub deadline: Duration,
    /// Messages that a channel holds before their sender waits for the receiver; 0: a message has left only
    /// when the receiver has taken it.
    pub capacity: usize,
    /// Whether collectives are done through shared memory, without messages.
    pub fused: bool,
}

/// All groups and gates of one run.
pub(crate) struct Threads {
    options: Options,
    /// Whether waiting threads look again for a while before they sleep: only where each has a core.
    spin: bool,
    pool: Pool,
    groups: Mutex<Groups>,
    time: RealTime,
}

#[derive(Default)]
struct Groups {
    all: Vec<Arc<Group>>,
    keys: BTreeMap<GroupKey, GroupId>,
}

impl Threads {
    /// A run of `size` ranks; the group of all of them is number 0.
    pub fn new(size: u32, options: Options) -> Threads {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let groups = Groups { all: vec![Arc::new(Group::new(size))], keys: BTreeMap::new() };
        Threads {
            options,
            spin: size as usize <= cores,
            pool: Pool::default(),
            groups: Mutex::new(groups),
            time: RealTime::start(),
        }
    }

    fn group(&self, GroupId(id): GroupId) -> Arc<Group> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).all[id as usize].clone()
    }
}

impl Backend for Threads {
    fn main(&self, world: Rank) -> ActorId {
        ActorId(world.0)
    }

    fn spawn(&self, parent: ActorId) -> ActorId {
        parent
    }

    fn retire(&self, _actor: ActorId) {}

    fn clock(&self) -> &dyn Clock {
        &self.time
    }

    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> GroupId {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let next = GroupId(groups.all.len() as u32);
        let id = *groups.keys.entry(key).or_insert(next);
        if id == next {
            groups.all.push(Arc::new(Group::new(members.len() as u32)));
        }
        id
    }

    fn leave(&self, _actor: ActorId, member: Member, operations: u64, cause: Lost) {
        self.group(member.group).leave(member.rank, operations, cause);
    }

    fn abort(&self, _actor: ActorId, member: Member, why: String) {
        self.group(member.group).fail(member.rank, Error::Aborted { by: member.rank, why });
    }

    fn survivors(&self, _actor: ActorId, member: Member) -> Result<Vec<Rank>> {
        self.group(member.group).survivors(member.rank, self.options.deadline)
    }

    fn transport(self: Arc<Self>, _actor: ActorId, member: Member) -> Box<dyn Transport> {
        let group = self.group(member.group);
        Box::new(Endpoint::new(group, member.rank, self.options, self.pool.clone(), self.spin))
    }
}
