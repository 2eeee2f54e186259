//! Ranks as threads that carry real data on a virtual clock.
//!
//! ```text
//! rank 0   ..code.. post, post, wait |                 | woken at 7 us ..code..
//! rank 1   ......code...... post, wait |               | woken at 7 us ..code..
//! conductor                            | 5 us .. 7 us  |
//! ```
//!
//! An actor's requests carry its own virtual time and are put down, not applied. When every actor is blocked in a
//! call of Allfold's, whoever blocked last conducts: requests and events are applied in order of (time, rank,
//! stream, sequence), never in order of arrival; time moves to the next event of the network; and those whom an
//! instant concerns are woken once nothing more is to be applied at it. So the same program has the same times and
//! the same bits on any machine, however its threads are scheduled.
//!
//! Messages are timed as in `allfold_timing`, to the picosecond.

mod agenda;
mod blame;
mod conductor;
mod core;
mod endpoint;
mod faults;
mod message;
mod options;
mod state;
mod wires;

pub use options::Activity;
pub(crate) use options::Options;

use self::core::Core;
use super::{ActorId, Backend, Clock, GateId, GroupId, GroupKey, Member};
use crate::transport::Connection;
use crate::{Error, Lost, Rank, Result};
use agenda::Due;
use allfold_sim::Picos;
use endpoint::Endpoint;
use state::Wait;
use std::sync::Arc;

/// A world on virtual time.
pub(crate) struct Sim {
    core: Arc<Core>,
}

impl Sim {
    /// One rank for each of the topology; all of them are group 0.
    pub fn new(options: Options) -> Sim {
        Sim { core: Arc::new(Core::new(options)) }
    }

    /// What ranks did, in order of ranks and streams.
    pub fn timeline(&self) -> Vec<Activity> {
        let mut timeline = std::mem::take(&mut self.core.lock().timeline);
        timeline.sort_by_key(|activity| (activity.rank, activity.stream, activity.start, activity.end));
        timeline
    }

    /// Of all messages that have arrived.
    pub fn event_hash(&self) -> u64 {
        self.core.lock().wires.hash.value()
    }
}

impl Clock for Sim {
    fn now(&self, actor: ActorId) -> Picos {
        self.core.lock().time_of(actor)
    }

    fn charge(&self, actor: ActorId, work: &allfold_sim::DeviceWork) {
        self.core.lock().charge(actor, *work);
    }

    fn gate(&self) -> GateId {
        self.core.lock().gate()
    }

    fn raise(&self, actor: ActorId, gate: GateId) {
        self.core.lock().request(actor, Due::Raise { actor, gate });
    }

    fn pass(&self, actor: ActorId, gate: GateId, count: u64) -> Result<()> {
        let mut state = self.core.lock();
        state.request(actor, Due::Pass { actor, gate, count });
        let state = self.core.block(state, actor, Wait::Gate(gate));
        state.broken().map_or(Ok(()), Err)
    }

    fn passed(&self, actor: ActorId, gate: GateId, count: u64) -> bool {
        let mut state = self.core.lock();
        state.request(actor, Due::Poll { actor, gate, count });
        let state = self.core.block(state, actor, Wait::Poll);
        state.count(gate) >= count
    }
}

impl Backend for Sim {
    fn main(&self, world: Rank) -> ActorId {
        ActorId(world.0)
    }

    fn spawn(&self, parent: ActorId) -> ActorId {
        self.core.lock().spawn(parent)
    }

    fn retire(&self, actor: ActorId) {
        self.core.lock().retire(actor);
    }

    fn clock(&self) -> &dyn Clock {
        self
    }

    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId> {
        Ok(self.core.lock().subgroup(key, members))
    }

    fn leave(&self, actor: ActorId, member: Member, operations: u64, cause: Lost) {
        self.core.lock().request(actor, Due::Leave { member, operations, cause });
    }

    fn abort(&self, actor: ActorId, member: Member, why: String) {
        let error = Error::Aborted { by: member.rank, why };
        let mut state = self.core.lock();
        state.request(actor, Due::Fail { actor, member, error });
        // Applied before it returns: also a call of one's own that waits for nobody fails after it.
        drop(self.core.block(state, actor, Wait::Applied));
    }

    fn survivors(&self, actor: ActorId, member: Member) -> Result<Vec<Rank>> {
        let mut state = self.core.lock();
        state.finish(actor, false);
        state.request(actor, Due::Shrink { member });
        let state = self.core.block(state, actor, Wait::Survivors(member));
        state.survivors(member)
    }

    fn connect(self: Arc<Self>, actor: ActorId, member: Member) -> Connection {
        Connection::by_messages(Endpoint::new(self.core.clone(), actor, member))
    }
}
