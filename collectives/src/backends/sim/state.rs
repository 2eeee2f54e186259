//! All that a world on virtual time is, under one lock, and what its actors ask of it while they run.

use super::agenda::{Agenda, Due};
use super::message::Half;
use super::options::{Activity, Options};
use super::wires::Wires;
use crate::backends::{ActorId, GateId, GroupId, GroupKey, Member};
use crate::contract::Ledger;
use crate::transport::Event;
use crate::{Call, Error, Operation, Rank};
use allfold_sim::Picos;
use allfold_sim::fault::Paced;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::{Arc, Condvar};

/// Times beyond this are refused, so that what is left of 64 bits has room for any sum.
pub(super) const LAST: u64 = u64::MAX / 4;

/// What an actor is blocked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// News of its posts in a group; the round of its oldest unfinished step.
    Posts { group: GroupId, round: u64 },
    /// A gate.
    Gate(GateId),
    /// Its look at a gate to be applied.
    Poll,
    /// Anything that happens to its rank: it has looked, and found nothing.
    News,
    /// A request of its own to be applied.
    Applied,
    /// Who of its group is left.
    Survivors(Member),
}

/// What an actor is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Running,
    Blocked(Wait),
    Gone,
}

/// A thread that takes part, and its clock.
pub(super) struct Actor {
    pub rank: Rank,
    pub stream: u32,
    pub now: u64,
    pub requests: u64,
    pub doing: Doing,
    pub inbox: VecDeque<Event>,
    pub bell: Arc<Condvar>,
    /// Operations entered so far; what was posted in an earlier one is no news.
    pub operation: u64,
    /// Computations so far.
    pub computed: u64,
    pub entered: Option<Entered>,
}

/// The operation that an actor is in.
pub(super) struct Entered {
    pub member: Member,
    pub call: Arc<Call>,
    pub start: u64,
    pub due: Option<u64>,
}

/// A count, and who waits for which.
#[derive(Default)]
pub(super) struct Gate {
    pub count: u64,
    pub waiting: Vec<(ActorId, u64)>,
}

/// The ranks of one communicator.
pub(super) struct Group {
    pub ledger: Ledger,
    /// Its members, as ranks of the world.
    pub members: Vec<Rank>,
}

/// Everything, under one lock.
pub(super) struct State {
    pub options: Options,
    pub now: u64,
    pub actors: Vec<Actor>,
    pub running: u32,
    pub gates: Vec<Gate>,
    pub groups: Vec<Group>,
    pub keys: BTreeMap<GroupKey, GroupId>,
    pub agenda: Agenda,
    /// When which actor's operation must be done.
    pub deadlines: BTreeSet<(u64, Rank, u32, ActorId)>,
    pub wires: Wires,
    /// How many actors are blocked in [`Wait::News`].
    pub polling: u32,
    /// Blocked actors that this instant concerns.
    pub woken: BTreeSet<ActorId>,
    pub progress: u64,
    /// What ended the whole world.
    pub broken: Option<Error>,
    pub timeline: Vec<Activity>,
}

impl State {
    pub fn new(options: Options) -> State {
        let ranks = options.topology.ranks();
        let members: Vec<Rank> = (0..ranks).map(Rank).collect();
        let mut state = State {
            now: 0,
            actors: Vec::new(),
            running: 0,
            gates: Vec::new(),
            groups: vec![Group { ledger: Ledger::new(ranks), members: members.clone() }],
            keys: BTreeMap::new(),
            agenda: Agenda::default(),
            deadlines: BTreeSet::new(),
            wires: Wires::new(&options),
            polling: 0,
            woken: BTreeSet::new(),
            progress: 0,
            broken: None,
            timeline: Vec::new(),
            options,
        };
        for rank in members {
            state.actor(rank, 0, 0);
        }
        for (rank, at) in state.options.faults.deaths_by_clock(ranks) {
            state.agenda.event(at.0, Due::Die { rank });
        }
        state
    }

    fn actor(&mut self, rank: Rank, stream: u32, now: u64) -> ActorId {
        self.running += 1;
        self.actors.push(Actor {
            rank,
            stream,
            now,
            requests: 0,
            doing: Doing::Running,
            inbox: VecDeque::new(),
            bell: Arc::default(),
            operation: 0,
            computed: 0,
            entered: None,
        });
        ActorId(self.actors.len() as u32 - 1)
    }

    pub fn at(&mut self, ActorId(id): ActorId) -> &mut Actor {
        &mut self.actors[id as usize]
    }

    /// Another actor of the same rank, at the same time. It runs, and its thread is about to start.
    pub fn spawn(&mut self, parent: ActorId) -> ActorId {
        let (rank, now) = (self.at(parent).rank, self.at(parent).now);
        let stream = self.actors.iter().filter(|actor| actor.rank == rank).count() as u32;
        self.actor(rank, stream, now)
    }

    pub fn retire(&mut self, actor: ActorId) {
        if mem::replace(&mut self.at(actor).doing, Doing::Gone) == Doing::Running {
            self.stop_one();
        }
    }

    pub fn time_of(&self, ActorId(id): ActorId) -> Picos {
        Picos(self.actors[id as usize].now)
    }

    pub fn bell(&self, ActorId(id): ActorId) -> Arc<Condvar> {
        self.actors[id as usize].bell.clone()
    }

    pub fn is_running(&self, ActorId(id): ActorId) -> bool {
        self.actors[id as usize].doing == Doing::Running
    }

    /// How often anyone was woken.
    pub fn progress(&self) -> u64 {
        self.progress
    }

    pub fn broken(&self) -> Option<Error> {
        self.broken.clone()
    }

    pub fn charge(&mut self, actor: ActorId, work: allfold_sim::DeviceWork) {
        let rank = self.at(actor).rank;
        let span = self.options.faults.compute(rank, &self.options.device, work);
        let nth = self.at(actor).computed;
        self.at(actor).computed += 1;
        let span = self.takes_about(actor, Paced::Compute, nth, span);
        let start = self.at(actor).now;
        self.at(actor).now = start.saturating_add(span.0).min(LAST);
        self.record(actor, start, || "compute".into());
    }

    fn record(&mut self, actor: ActorId, start: u64, what: impl FnOnce() -> String) {
        if self.options.timeline {
            let &mut Actor { rank, stream, now, .. } = self.at(actor);
            let (start, end) = (Picos(start), Picos(now));
            self.timeline.push(Activity { rank, stream, what: what(), start, end });
        }
    }

    pub fn gate(&mut self) -> GateId {
        self.gates.push(Gate::default());
        GateId(self.gates.len() as u32 - 1)
    }

    pub fn count(&self, GateId(gate): GateId) -> u64 {
        self.gates[gate as usize].count
    }

    pub fn subgroup(&mut self, key: GroupKey, members: &[Rank]) -> GroupId {
        let next = GroupId(self.groups.len() as u32);
        let id = *self.keys.entry(key).or_insert(next);
        if id == next {
            let parent = &self.groups[key.parent.0 as usize].members;
            let world: Vec<Rank> = members.iter().map(|rank| parent[rank.index()]).collect();
            self.groups.push(Group { ledger: Ledger::new(world.len() as u32), members: world });
        }
        id
    }

    /// Puts a request down at the actor's time.
    pub fn request(&mut self, actor: ActorId, due: Due) {
        self.request_after(actor, Picos::ZERO, due);
    }

    fn request_after(&mut self, actor: ActorId, after: Picos, due: Due) {
        let of = self.at(actor);
        of.requests += 1;
        let (time, rank, stream, requests) =
            (of.now.saturating_add(after.0), of.rank, of.stream, of.requests);
        self.agenda.request(time, rank, stream, requests, due);
    }

    /// The actor enters an operation: it is heard of now, and its first step can start after the launch.
    pub fn enter(&mut self, actor: ActorId, member: Member, call: &Arc<Call>) -> Result<(), Error> {
        self.finish(actor, false);
        if let Some(error) = self.failure(member) {
            return Err(error);
        }
        self.request(actor, Due::Enter { member, call: call.clone() });
        let rank = self.at(actor).rank;
        let launch = self.options.faults.costs(rank, &self.options.costs).launch;
        let launch = self.takes_about(actor, Paced::Launch, call.sequence, launch);
        let deadline = self.options.deadline;
        let of = self.at(actor);
        of.operation += 1;
        of.inbox.clear();
        let (start, due) = (of.now, deadline.map(|deadline| of.now.saturating_add(deadline.0)));
        if call.operation != Operation::PointToPoint {
            of.now = of.now.saturating_add(launch.0);
        }
        of.entered = Some(Entered { member, call: call.clone(), start, due });
        let (rank, stream) = (of.rank, of.stream);
        self.deadlines.extend(due.map(|due| (due, rank, stream, actor)));
        Ok(())
    }

    /// The actor's operation is over.
    pub fn finish(&mut self, actor: ActorId, done: bool) {
        let of = self.at(actor);
        let (rank, stream) = (of.rank, of.stream);
        if let Some(Entered { call, start, due, .. }) = of.entered.take() {
            due.map(|due| self.deadlines.remove(&(due, rank, stream, actor)));
            if done {
                self.record(actor, start, || call.to_string());
            }
        }
    }

    /// The name of what an actor posts now.
    pub fn half(&mut self, actor: ActorId) -> Half {
        Half { actor, operation: self.at(actor).operation }
    }

    /// How long a move within the actor's rank takes.
    pub fn local(&mut self, actor: ActorId, bytes: usize, reduced: bool) -> Picos {
        let rank = self.at(actor).rank;
        let bytes = allfold_sim::Bytes(bytes as u64);
        let span = self.options.faults.costs(rank, &self.options.costs).local(bytes, reduced);
        self.takes(actor, span)
    }

    /// The event that ends such a move.
    pub fn move_ends(&mut self, actor: ActorId, after: Picos, round: u64) {
        let half = self.half(actor);
        self.request_after(actor, after, Due::Moved { half, round });
    }

    /// Why a member cannot go on, if it cannot.
    pub fn failure(&self, member: Member) -> Option<Error> {
        let Group { ledger, members } = &self.groups[member.group.0 as usize];
        if self.wires.transit.is_dead(members[member.rank.index()]) {
            return Some(ledger.lost(member.rank));
        }
        self.broken.clone().or_else(|| ledger.failure(member.rank))
    }

    /// Who of a member's group goes on.
    pub fn survivors(&self, member: Member) -> Result<Vec<Rank>, Error> {
        let undecided = || Err(self.broken.clone().unwrap_or(Error::Deadlock { waits: Vec::new() }));
        self.groups[member.group.0 as usize].ledger.survivors(member.rank).unwrap_or_else(undecided)
    }

    /// News for an actor, oldest first.
    pub fn news(&mut self, actor: ActorId) -> Option<Event> {
        self.at(actor).inbox.pop_front()
    }

    /// The actor blocks. If it was the last one that ran, time goes on.
    pub fn block(&mut self, actor: ActorId, wait: Wait) {
        self.at(actor).doing = Doing::Blocked(wait);
        self.stop_one();
    }

    fn stop_one(&mut self) {
        self.running -= 1;
        if self.running == 0 {
            self.conduct();
        }
    }
}
