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
mod conductor;
mod endpoint;
mod state;
mod trouble;
mod wires;

use super::{ActorId, Backend, Clock, GateId, GroupId, GroupKey, Member};
use crate::transport::{Pool, Transport};
use crate::{Error, Lost, Rank, Result};
use agenda::Due;
use allfold_sim::{Costs, Device, Faults, Picos, Sharing, Topology};
use endpoint::Endpoint;
use state::{State, Wait};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What can be chosen about ranks on virtual time.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub topology: Topology,
    pub costs: Costs,
    pub sharing: Sharing,
    pub faults: Faults,
    pub device: Device,
    /// How long an operation may take, in virtual time.
    pub deadline: Option<Picos>,
    /// How long, in real time, a rank may be busy outside of Allfold's calls while all others wait.
    pub watchdog: Duration,
    /// Whether what ranks do is recorded.
    pub timeline: bool,
}

/// Something that a rank did, on virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Which rank of the world.
    pub rank: Rank,
    /// 0: the rank's own code; from 1 on: its communication threads, in order of their start.
    pub stream: u32,
    /// `compute`, or the operation.
    pub what: String,
    /// When it began.
    pub start: Picos,
    /// When it was done.
    pub end: Picos,
}

/// The deadline of operations where messages may be lost and none is given: 300 s of virtual time.
const PATIENCE: Picos = Picos(300_000_000_000_000);

/// A world on virtual time.
pub(crate) struct Sim {
    state: Mutex<State>,
    pool: Pool,
    watchdog: Duration,
}

impl Sim {
    /// One rank for each of the topology; all of them are group 0.
    pub fn new(mut options: Options) -> Sim {
        if !options.faults.is_steady() {
            options.deadline.get_or_insert(PATIENCE);
        }
        let watchdog = options.watchdog;
        Sim { state: Mutex::new(State::new(options)), pool: Pool::default(), watchdog }
    }

    /// What ranks did, in order of ranks and streams.
    pub fn timeline(&self) -> Vec<Activity> {
        let mut timeline = std::mem::take(&mut self.lock().timeline);
        timeline.sort_by_key(|activity| (activity.rank, activity.stream, activity.start, activity.end));
        timeline
    }

    /// Of all messages that have arrived.
    pub fn event_hash(&self) -> u64 {
        self.lock().wires.hash.value()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks an actor until the conductor wakes it; conducts where nobody else runs any more.
    fn block<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        actor: ActorId,
        wait: Wait,
    ) -> MutexGuard<'a, State> {
        state.block(actor, wait);
        let bell = state.bell(actor);
        while !state.is_running(actor) {
            let seen = state.progress();
            let (next, waited) =
                bell.wait_timeout(state, self.watchdog).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() && state.progress() == seen && !state.is_running(actor) {
                state.give_up(self.watchdog);
            }
        }
        state
    }
}

impl Clock for Sim {
    fn now(&self, actor: ActorId) -> Picos {
        self.lock().time_of(actor)
    }

    fn charge(&self, actor: ActorId, work: &allfold_sim::Work) {
        self.lock().charge(actor, *work);
    }

    fn gate(&self) -> GateId {
        self.lock().gate()
    }

    fn raise(&self, actor: ActorId, gate: GateId) {
        self.lock().request(actor, Due::Raise { actor, gate });
    }

    fn pass(&self, actor: ActorId, gate: GateId, count: u64) -> Result<()> {
        let mut state = self.lock();
        state.request(actor, Due::Pass { actor, gate, count });
        let state = self.block(state, actor, Wait::Gate(gate));
        state.broken().map_or(Ok(()), Err)
    }

    fn passed(&self, actor: ActorId, gate: GateId, count: u64) -> bool {
        let mut state = self.lock();
        state.request(actor, Due::Poll { actor, gate, count });
        let state = self.block(state, actor, Wait::Poll);
        state.count(gate) >= count
    }
}

impl Backend for Sim {
    fn main(&self, world: Rank) -> ActorId {
        ActorId(world.0)
    }

    fn spawn(&self, parent: ActorId) -> ActorId {
        self.lock().spawn(parent)
    }

    fn retire(&self, actor: ActorId) {
        self.lock().retire(actor);
    }

    fn clock(&self) -> &dyn Clock {
        self
    }

    fn subgroup(&self, key: GroupKey, members: &[Rank]) -> Result<GroupId> {
        Ok(self.lock().subgroup(key, members))
    }

    fn leave(&self, actor: ActorId, member: Member, operations: u64, cause: Lost) {
        self.lock().request(actor, Due::Leave { member, operations, cause });
    }

    fn abort(&self, actor: ActorId, member: Member, why: String) {
        let error = Error::Aborted { by: member.rank, why };
        let mut state = self.lock();
        state.request(actor, Due::Fail { actor, member, error });
        // Applied before it returns: also a call of one's own that waits for nobody fails after it.
        drop(self.block(state, actor, Wait::Applied));
    }

    fn survivors(&self, actor: ActorId, member: Member) -> Result<Vec<Rank>> {
        let mut state = self.lock();
        state.finish(actor, false);
        state.request(actor, Due::Shrink { member });
        let state = self.block(state, actor, Wait::Survivors(member));
        state.survivors(member)
    }

    fn transport(self: Arc<Self>, actor: ActorId, member: Member) -> Box<dyn Transport> {
        Box::new(Endpoint::new(self, actor, member))
    }
}
