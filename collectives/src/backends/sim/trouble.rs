//! What fault rules do to messages and to ranks that carry data: the same as in `allfold_timing`, and the contract's errors.
//!
//! ```text
//! a message starts     verdict: lost, damaged, twice, late        its sender's half is done as ever
//! a rank dies          its messages under way are torn            its groups fail at once, and name it
//! a deadline passes    from the rank that is late along what each waits for, to who or what waits for nobody
//! ```

use super::agenda::{Due, Half};
use super::state::{Doing, Entered, State, Wait};
use super::wires::{Channel, Wires};
use crate::backends::ActorId;
use crate::error::Lost;
use crate::{Call, Error, Operation, Rank};
use allfold_sim::fault::{Death, Message, Paced};
use allfold_sim::{BytesPerSec, Faults, LinkId, Picos};
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of one message.
#[derive(Clone, Copy, Default)]
pub(super) struct Fate {
    pub dropped: bool,
    /// The bit that is flipped, modulo how many there are.
    pub corrupted: Option<u64>,
    pub duplicated: bool,
    /// How much later it arrives.
    pub late: u64,
}

/// The faults of the network, as they come.
pub(super) struct Trouble {
    /// When bandwidths or gates change next.
    pub change: Option<Picos>,
    /// The last instant at which anything else was due.
    since: Picos,
    /// The links whose bandwidth changes, and what it is without rules that have a time.
    pub changing: Vec<(LinkId, BytesPerSec)>,
    /// Links of the topology; gates come after them.
    pub links: u32,
    touches_messages: bool,
    /// Messages that have started, by sender and receiver in the world.
    counts: BTreeMap<(Rank, Rank), u64>,
    /// Copies under way, by flow, and the channels they hold.
    pub copies: BTreeMap<u32, Channel>,
    /// When the last message of each channel arrives: those behind it arrive no sooner.
    pub arrivals: BTreeMap<Channel, u64>,
    /// Who is dead, as ranks of the world.
    pub dead: BTreeSet<Rank>,
}

impl Trouble {
    pub fn new(faults: &Faults, links: u32, steady: impl Fn(LinkId) -> BytesPerSec) -> Option<Trouble> {
        let changing = faults.changing();
        (!faults.is_steady()).then(|| Trouble {
            change: (faults.gates() > 0 || !changing.is_empty()).then_some(Picos::ZERO),
            since: Picos::ZERO,
            changing: changing.into_iter().map(|link| (link, steady(link))).collect(),
            links,
            touches_messages: faults.touch_messages(),
            counts: BTreeMap::new(),
            copies: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            dead: BTreeSet::new(),
        })
    }

    /// A message's fate, decided when it starts.
    pub fn judge(
        &mut self,
        faults: &Faults,
        (from, to): (Rank, Rank),
        (operation, round): (u64, u64),
        now: u64,
        path: impl Iterator<Item = LinkId>,
    ) -> Fate {
        if !self.touches_messages {
            return Fate::default();
        }
        let nth = self.counts.entry((from, to)).or_default();
        *nth += 1;
        let asked = Message { from, to, operation, round, nth: *nth, at: Picos(now) };
        let verdict = faults.verdict(&asked);
        let late = verdict.delay + verdict.held.unwrap_or_default();
        let late = path.fold(late, |sum, link| sum + faults.lateness(link, &asked));
        let (dropped, corrupted, duplicated) = (verdict.dropped, verdict.corrupted, verdict.duplicated);
        Fate { dropped, corrupted, duplicated, late: late.0 }
    }
}

impl Wires {
    /// When the weather changes next, where that can concern anyone: nothing else is due (`due`), and flows stand still.
    pub fn next_change(&mut self, faults: &Faults, due: Option<u64>) -> Option<u64> {
        let trouble = self.trouble.as_mut()?;
        let change = trouble.change?;
        if let Some(due) = due {
            trouble.since = Picos(due.min(change.0));
            return Some(change.0);
        }
        let waits = change <= faults.settled(trouble.since) && self.network.has_flows();
        waits.then_some(change.0)
    }

    /// Gives links the bandwidth that they have from now on.
    pub fn weather(&mut self, faults: &Faults, now: u64) {
        let now = Picos(now);
        let due = |trouble: &&mut Trouble| trouble.change.is_some_and(|at| at <= now);
        let Some(trouble) = self.trouble.as_mut().filter(due) else { return };
        trouble.change = faults.change(now);
        for &(link, steady) in &trouble.changing {
            self.network.set_bandwidth(link, faults.bandwidth(link, steady, now));
        }
        for gate in 0..faults.gates() {
            let open = BytesPerSec(if faults.is_open(gate, now) { u64::MAX } else { 0 });
            self.network.set_bandwidth(LinkId(trouble.links + gate), open);
        }
    }

    /// A rank dies: what it has not sent never leaves, what it has not received never arrives.
    pub fn die(&mut self, rank: Rank, now: u64) {
        let Some(trouble) = &mut self.trouble else { return };
        trouble.dead.insert(rank);
        let torn = self.network.flows().filter(|flow| {
            let id = self.carried.get(flow.0 as usize).copied();
            let channel = id.and_then(|id| self.channel_of(id));
            let ends = channel.and_then(|channel| self.ends_of(channel));
            ends.is_some_and(|(from, to)| from == rank || to == rank)
        });
        let torn: Vec<_> = torn.collect();
        torn.into_iter().for_each(|flow| self.network.cancel(Picos(now), flow));
    }

    pub fn is_dead(&self, rank: Rank) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.dead.contains(&rank))
    }
}

impl State {
    /// Puts down when ranks die that die by the clock.
    pub fn foretell(&mut self) {
        for rank in (0..self.options.topology.ranks()).map(Rank) {
            if let Some(Death::At(at)) = self.options.faults.death(rank) {
                self.agenda.event(at.0, Due::Die { rank });
            }
        }
    }

    /// Whether a rank is to die before this step of its own, and makes it so.
    pub fn dies_before(&mut self, actor: ActorId, round: u64) -> bool {
        let of = self.at(actor);
        let rank = of.rank;
        let Some(call) = of.entered.as_ref().map(|entered| entered.call.clone()) else { return false };
        let Some(Death::In { operation, round: last }) = self.options.faults.death(rank) else {
            return false;
        };
        let now = call.operation != Operation::PointToPoint && call.sequence == operation && round >= last;
        if now {
            self.request(actor, Due::Die { rank });
        }
        now
    }

    /// A rank dies. Whoever is in an operation with it is told at once, whoever enters one later then.
    pub fn die(&mut self, rank: Rank) {
        if self.wires.is_dead(rank) {
            return;
        }
        self.wires.die(rank, self.now);
        let cause = Lost::Disconnected(format!("died at {}", Picos(self.now)));
        let actors = self.those(|of| of.rank == rank);
        let seats: Vec<_> = (0..self.groups.len())
            .filter_map(|group| {
                let local = self.groups[group].members.iter().position(|member| *member == rank)?;
                Some((crate::backends::GroupId(group as u32), Rank(local as u32)))
            })
            .collect();
        for (group, local) in seats {
            let within = actors.iter().find_map(|actor| {
                let entered = self.at(*actor).entered.as_ref()?;
                (entered.member.group == group).then(|| entered.call.clone())
            });
            if self.ledger(group).die(local, cause.clone(), within.as_deref()) {
                self.alarm(group);
            }
            let letters = self.wires.letters(group, local);
            letters.into_iter().for_each(|channel| self.mourn(channel));
        }
        for actor in actors {
            if matches!(self.at(actor).doing, Doing::Blocked(Wait::Posts { .. })) {
                self.wake(actor);
            }
        }
    }

    /// How long an actor's own work takes from its time on.
    pub fn takes(&mut self, actor: ActorId, span: Picos) -> Picos {
        let (rank, now) = (self.at(actor).rank, self.at(actor).now);
        self.options.faults.takes(rank, Picos(now), span)
    }

    /// How long a launch or a computation takes, jitter included.
    pub fn takes_about(&mut self, actor: ActorId, what: Paced, nth: u64, span: Picos) -> Picos {
        let (rank, now) = (self.at(actor).rank, self.at(actor).now);
        let more = self.options.faults.jitter(rank, what, nth, Picos(now));
        self.takes(actor, span + more)
    }

    /// Who is to blame for a rank that is late: who waits, for whom, in which round.
    pub fn blame(&mut self, late: ActorId) -> (Rank, Vec<Rank>, u64) {
        let mut at = late;
        let mut seen = BTreeSet::new();
        loop {
            let half = self.half(at);
            let of = self.at(at);
            let (doing, rank) =
                (of.doing, of.entered.as_ref().map_or(of.rank, |entered| entered.member.rank));
            let Doing::Blocked(Wait::Posts { group, round }) = doing else { return (rank, vec![rank], 0) };
            if let Some((from, to, sent)) = self.wires.stuck(half) {
                return (to, vec![from], sent);
            }
            let peers: Vec<Rank> = self.wires.peers(half).into_iter().collect();
            let waits = |state: &State, peer: Rank| {
                let in_it = |of: &super::state::Actor| {
                    let here =
                        |entered: &Entered| entered.member.group == group && entered.member.rank == peer;
                    of.entered.as_ref().is_some_and(here)
                        && matches!(of.doing, Doing::Blocked(Wait::Posts { .. }))
                };
                state.those(in_it).first().copied()
            };
            seen.insert(at);
            // Who is no longer in the operation waits for nobody; else on along the first who waits as well.
            let next = peers.iter().map(|peer| waits(self, *peer)).collect::<Option<Vec<_>>>();
            match next.and_then(|next| next.into_iter().find(|actor| !seen.contains(actor))) {
                Some(next) if !peers.is_empty() => at = next,
                _ => {
                    let busy = |peer: &Rank| waits(self, *peer).is_none();
                    let blamed: Vec<Rank> = peers.iter().copied().filter(busy).collect();
                    return (rank, if blamed.is_empty() { peers } else { blamed }, round);
                }
            }
        }
    }

    /// A message's checksum does not match its bytes: its receiver fails the operation.
    pub fn damaged(&mut self, receiver: Half, peer: Rank, round: u64, call: &Call, sums: (u32, u32)) {
        let of = self.at(receiver.actor);
        if of.operation != receiver.operation {
            return;
        }
        let Some(member) = of.entered.as_ref().map(|entered| entered.member) else { return };
        let what = format!("its checksum is {:08x}, and that of its bytes {:08x}", sums.0, sums.1);
        let (rank, call) = (member.rank, Box::new(call.clone()));
        self.ledger(member.group).fail(rank, Error::Protocol { rank, peer, call, round, what });
        self.alarm(member.group);
    }
}

/// Puts a copy of a message on its way: it holds the channel and the links once more.
pub(super) fn copy(wires: &mut Wires, channel: Channel, bytes: u64, now: u64) {
    let Some(path) = wires.path_of(channel) else { return };
    let flow = wires.network.begin(Picos(now), &path, allfold_sim::Bytes(bytes));
    if let Some(trouble) = &mut wires.trouble {
        trouble.copies.insert(flow.0, channel);
    }
}
