//! The conductor: what every actor does, and who is woken when.

use super::agenda::{Agenda, Due, Half};
use super::wires::{Channel, News, Wires};
use super::{Activity, Options};
use crate::backends::{ActorId, GateId, GroupId, GroupKey, Member};
use crate::ledger::Ledger;
use crate::transport::Event;
use crate::{Call, Error, Operation, Rank};
use allfold_sim::Picos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::{Arc, Condvar};
use std::time::Duration;

/// What an actor is blocked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// News of its posts in a group; the round of its oldest unfinished step.
    Posts { group: GroupId, round: u64 },
    /// A gate.
    Gate(GateId),
    /// Anything that happens to its rank.
    News,
    /// A request of its own to be applied.
    Applied,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Running,
    Blocked(Wait),
    Gone,
}

struct Actor {
    rank: Rank,
    stream: u32,
    now: u64,
    requests: u64,
    doing: Doing,
    inbox: VecDeque<Event>,
    bell: Arc<Condvar>,
    /// Operations entered so far; what was posted in an earlier one is no news.
    operation: u64,
    entered: Option<Entered>,
}

/// The operation that an actor is in.
struct Entered {
    member: Member,
    call: Arc<Call>,
    start: u64,
    due: Option<u64>,
}

#[derive(Default)]
struct Gate {
    count: u64,
    waiting: Vec<(ActorId, u64)>,
}

struct Group {
    ledger: Ledger,
    /// Its members, as ranks of the world.
    members: Vec<Rank>,
}

/// Everything, under one lock.
pub(super) struct State {
    options: Options,
    now: u64,
    actors: Vec<Actor>,
    running: u32,
    gates: Vec<Gate>,
    groups: Vec<Group>,
    keys: BTreeMap<GroupKey, GroupId>,
    agenda: Agenda,
    /// When which actor's operation must be done.
    deadlines: BTreeSet<(u64, ActorId)>,
    wires: Wires,
    /// Blocked actors that this instant concerns.
    woken: BTreeSet<ActorId>,
    progress: u64,
    /// What ended the whole world.
    broken: Option<Error>,
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
            woken: BTreeSet::new(),
            progress: 0,
            broken: None,
            timeline: Vec::new(),
            options,
        };
        for rank in members {
            state.actor(rank, 0, 0);
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
            entered: None,
        });
        ActorId(self.actors.len() as u32 - 1)
    }

    fn at(&mut self, ActorId(id): ActorId) -> &mut Actor {
        &mut self.actors[id as usize]
    }

    // What actors ask for; each is called by the actor itself, which runs.

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

    pub fn charge(&mut self, actor: ActorId, work: allfold_sim::Work) {
        let rank = self.at(actor).rank;
        let span = self.options.faults.compute(rank, &self.options.device, work);
        let start = self.at(actor).now;
        self.at(actor).now = start.saturating_add(span.0).min(u64::MAX / 4);
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
        let (time, rank, stream, requests) = (of.now + after.0, of.rank, of.stream, of.requests);
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
        let deadline = self.options.deadline;
        let of = self.at(actor);
        of.operation += 1;
        of.inbox.clear();
        let (start, due) = (of.now, deadline.map(|deadline| of.now.saturating_add(deadline.0)));
        if call.operation != Operation::PointToPoint {
            of.now += launch.0;
        }
        of.entered = Some(Entered { member, call: call.clone(), start, due });
        self.deadlines.extend(due.map(|due| (due, actor)));
        Ok(())
    }

    /// The actor's operation is over.
    pub fn finish(&mut self, actor: ActorId, done: bool) {
        if let Some(Entered { call, start, due, .. }) = self.at(actor).entered.take() {
            due.map(|due| self.deadlines.remove(&(due, actor)));
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
        self.options.faults.costs(rank, &self.options.costs).local(allfold_sim::Bytes(bytes as u64), reduced)
    }

    /// The event that ends such a move.
    pub fn move_ends(&mut self, actor: ActorId, after: Picos, round: u64) {
        let half = self.half(actor);
        self.request_after(actor, after, Due::Moved { half, round });
    }

    /// Why a member cannot go on, if it cannot.
    pub fn failure(&self, member: Member) -> Option<Error> {
        let ledger = &self.groups[member.group.0 as usize].ledger;
        self.broken.clone().or_else(|| ledger.failure(member.rank))
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

    // What happens while everyone is blocked.

    /// Applies what is due, instant by instant, until somebody has to run again.
    fn conduct(&mut self) {
        loop {
            while let Some(due) = self.agenda.take(self.now) {
                self.apply(due);
            }
            if !self.woken.is_empty() {
                return self.release();
            }
            self.wires.settle(self.now);
            let next = [self.agenda.next(), self.wires.next()].into_iter().flatten().min();
            let late = self.deadlines.first().copied();
            match (next, late) {
                (Some(next), Some((due, actor))) if due < next => {
                    self.now = self.now.max(due);
                    self.deadlines.remove(&(due, actor));
                    self.expire(actor);
                }
                (Some(next), _) => {
                    self.now = next;
                    let mut tell = Vec::new();
                    self.wires.left(next, &self.options, &mut self.agenda, &mut tell);
                    tell.into_iter().for_each(|news| self.tell(news));
                }
                (None, _) if self.stalled() => {}
                (None, _) => return,
            }
        }
    }

    /// Lets those run whom this instant concerns.
    fn release(&mut self) {
        self.progress += 1;
        for actor in mem::take(&mut self.woken) {
            let now = self.now;
            let of = self.at(actor);
            of.doing = Doing::Running;
            of.now = of.now.max(now);
            of.bell.notify_all();
            self.running += 1;
        }
    }

    fn wake(&mut self, actor: ActorId) {
        if !matches!(self.at(actor).doing, Doing::Blocked(_)) {
            return;
        }
        self.woken.insert(actor);
        self.wake_pollers(actor);
    }

    /// Something happened to an actor: whoever polls for its rank looks again.
    fn wake_pollers(&mut self, actor: ActorId) {
        let rank = self.at(actor).rank;
        let polls = |of: &Actor| of.rank == rank && of.doing == Doing::Blocked(Wait::News);
        self.woken.extend(self.those(polls));
    }

    fn apply(&mut self, due: Due) {
        match due {
            Due::Flow(message) => self.wires.flow(message, self.now),
            Due::Arrive(message) => {
                let news = self.wires.arrived(message);
                news.into_iter().for_each(|news| self.tell(news));
            }
            Due::Moved { half, round } => self.deliver(half, Event::Moved { round }),
            Due::Enter { member, call } => {
                let letter = call.operation == Operation::PointToPoint;
                if !letter && self.ledger(member.group).enter(member.rank, &call).is_err() {
                    self.alarm(member.group);
                }
            }
            Due::Send { half, member, to, lane, frame } => {
                let channel = (member.group, member.rank, to, lane);
                let ends = self.ends(channel);
                self.wires.send(channel, ends, (half, frame), self.now, &self.options, &mut self.agenda);
                self.mourn(channel);
            }
            Due::Receive { half, member, from, lane, reduced } => {
                let channel = (member.group, from, member.rank, lane);
                let ends = self.ends(channel);
                self.wires.receive(channel, ends, (half, reduced), self.now, &self.options, &mut self.agenda);
                self.mourn(channel);
            }
            Due::Raise { actor, gate: GateId(gate) } => {
                let gate = &mut self.gates[gate as usize];
                gate.count += 1;
                let count = gate.count;
                let through = gate.waiting.extract_if(.., |(_, wanted)| *wanted <= count);
                let through: Vec<ActorId> = through.map(|(actor, _)| actor).collect();
                through.into_iter().for_each(|actor| self.wake(actor));
                self.wake_pollers(actor);
            }
            Due::Pass { actor, gate, count } if self.broken.is_none() && self.count(gate) < count => {
                self.gates[gate.0 as usize].waiting.push((actor, count));
            }
            Due::Poll { gate, count, .. } if self.broken.is_none() && self.count(gate) < count => {}
            Due::Pass { actor, .. } | Due::Poll { actor, .. } => self.wake(actor),
            Due::Leave { member, operations, cause } => {
                if self.ledger(member.group).leave(member.rank, operations, cause).is_err() {
                    self.alarm(member.group);
                }
                let letters = self.wires.letters(member.group, member.rank);
                letters.into_iter().for_each(|channel| self.mourn(channel));
            }
            Due::Fail { actor, member, error } => {
                self.ledger(member.group).fail(member.rank, error);
                self.alarm(member.group);
                if self.at(actor).doing == Doing::Blocked(Wait::Applied) {
                    self.wake(actor);
                }
            }
        }
    }

    fn ledger(&mut self, GroupId(group): GroupId) -> &mut Ledger {
        &mut self.groups[group as usize].ledger
    }

    /// The two ends of a channel, as ranks of the world.
    fn ends(&self, (GroupId(group), from, to, _): Channel) -> (Rank, Rank) {
        let members = &self.groups[group as usize].members;
        (members[from.index()], members[to.index()])
    }

    fn tell(&mut self, news: News) {
        match news {
            News::Left { half, to, lane } => self.deliver(half, Event::Sent { to, lane }),
            News::Arrived { half, from, lane, frame } => {
                self.deliver(half, Event::Received { from, lane, frame });
            }
        }
    }

    fn deliver(&mut self, half: Half, event: Event) {
        let of = self.at(half.actor);
        if of.operation == half.operation && of.entered.is_some() {
            of.inbox.push_back(event);
            self.wake(half.actor);
        }
    }

    /// Wakes everyone who waits for news of posts in a group.
    fn alarm(&mut self, group: GroupId) {
        let waits =
            |of: &Actor| matches!(of.doing, Doing::Blocked(Wait::Posts { group: of, .. }) if of == group);
        for actor in self.those(waits) {
            self.wake(actor);
        }
    }

    /// A letter whose other side has left never arrives: its group fails.
    fn mourn(&mut self, channel: Channel) {
        let Some((half, me, peer)) = self.wires.lonely(channel) else { return };
        if !self.ledger(channel.0).has_left(peer) {
            return;
        }
        let call = self.at(half.actor).entered.as_ref().map(|entered| entered.call.clone());
        self.ledger(channel.0).lose(me, peer, call.as_deref());
        self.alarm(channel.0);
    }

    /// An operation's deadline has passed.
    fn expire(&mut self, actor: ActorId) {
        let half = self.half(actor);
        let of = self.at(actor);
        let round = match of.doing {
            Doing::Blocked(Wait::Posts { round, .. }) => round,
            _ => 0,
        };
        let Some(Entered { member, call, .. }) = &of.entered else { return };
        let (member, call) = (*member, call.clone());
        let mut waiting_on = match call.operation {
            Operation::PointToPoint => Vec::new(),
            _ => self.ledger(member.group).absent(call.sequence),
        };
        let entered = waiting_on.is_empty();
        if entered {
            waiting_on = self.wires.peers(half).into_iter().collect();
        }
        let after = self.options.deadline.map_or(Duration::ZERO, |span| Duration::from_nanos(span.0 / 1_000));
        let call = Box::new(call.as_ref().clone());
        let error = Error::DeadlineExceeded { rank: member.rank, waiting_on, entered, call, round, after };
        self.ledger(member.group).fail(member.rank, error);
        self.alarm(member.group);
    }

    /// Everyone is blocked and nothing is under way. Whether somebody can be told.
    fn stalled(&mut self) -> bool {
        let blocked = self.those(|of| matches!(of.doing, Doing::Blocked(_)));
        let mut waits = Vec::new();
        let mut groups = BTreeSet::new();
        for actor in blocked.iter().copied() {
            let half = self.half(actor);
            let of = self.at(actor);
            if let (Doing::Blocked(Wait::Posts { group, round }), Some(entered)) = (of.doing, &of.entered) {
                let (rank, call) = (entered.member.rank, entered.call.clone());
                let peers: Vec<String> = self.wires.peers(half).iter().map(Rank::to_string).collect();
                waits.push(format!(
                    "rank {rank} waits for rank {} in {call}, round {round}",
                    peers.join(", ")
                ));
                groups.insert(group);
            }
        }
        let error = Error::Deadlock { waits };
        for group in groups.iter().copied() {
            self.ledger(group).fail(Rank(0), error.clone());
            self.alarm(group);
        }
        if groups.is_empty() && !blocked.is_empty() {
            // Only an error of our own leads here; whoever waits is told rather than left.
            self.broken.get_or_insert(error);
            blocked.into_iter().for_each(|actor| self.wake(actor));
        }
        !self.woken.is_empty()
    }

    /// Some rank has been busy outside of our calls for too long: everyone is told who.
    pub fn give_up(&mut self, after: Duration) {
        let busy = self.those(|of| of.doing == Doing::Running);
        let waiting_on = busy.iter().map(|ActorId(id)| self.actors[*id as usize].rank).collect();
        self.broken.get_or_insert(Error::Unresponsive { waiting_on, after });
        for actor in self.those(|of| matches!(of.doing, Doing::Blocked(_))) {
            self.wake(actor);
        }
        self.release();
    }

    /// Actors by what they do, in order of ranks and streams.
    fn those(&self, which: impl Fn(&Actor) -> bool) -> Vec<ActorId> {
        let mut found: Vec<(Rank, u32, ActorId)> = (0..)
            .zip(&self.actors)
            .filter(|(_, of)| which(of))
            .map(|(id, of)| (of.rank, of.stream, ActorId(id)))
            .collect();
        found.sort();
        found.into_iter().map(|(_, _, actor)| actor).collect()
    }
}
