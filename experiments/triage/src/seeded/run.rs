//! Runs a job with a fault on a clock, until nothing moves or its time is up.

use super::dice::Dice;
use super::jobs::{Act, Fault, SeededJob};
use crate::model::{MessageEnd, OpState};
use std::collections::BTreeMap;

/// A call that a rank made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) act: Act,
    pub(super) sequence: u64,
    pub(super) state: OpState,
    pub(super) called: i64,
    pub(super) ended: i64,
}

/// What a run left.
pub(super) struct Ran {
    /// The calls of each rank, in order.
    pub(super) made: Vec<Vec<Made>>,
    /// When the dumps are written, in nanoseconds after the start.
    pub(super) written: i64,
    /// The time-out in milliseconds.
    pub(super) limit_ms: i64,
}

const MS: i64 = 1_000_000;
/// How many calls ahead a rank is at most.
const AHEAD: usize = 6;
/// The time-out of a job that does not have too short a one.
const LIMIT_MS: i64 = 600_000;

/// Runs a job.
pub(super) fn run(job: &SeededJob, fault: Fault, rank: u32, dice: &mut Dice) -> Ran {
    let at = at(job, fault, rank, dice);
    let mut programs: Vec<Vec<Act>> = (0..job.ranks).map(|rank| job.program(rank)).collect();
    break_program(&mut programs[rank as usize], fault, at, dice);
    if fault == Fault::LostNode {
        programs[rank as usize + 1].truncate(at);
    }
    if fault == Fault::SlowStart {
        programs.iter_mut().for_each(|acts| acts.truncate(dice.below(2) as usize));
        let first = programs.iter().position(Vec::is_empty);
        if first.is_none() {
            programs[rank as usize].clear();
        }
    }
    let stuck = matches!(fault, Fault::Network | Fault::GroupOfOtherRanks).then_some(at);
    let pace = (2 + dice.below(60) as i64) * MS;
    let late = (fault == Fault::Slow).then_some((rank, pace * (3 + dice.below(5) as i64)));
    let stop = matches!(fault, Fault::Healthy | Fault::Slow).then(|| pace * (20 + dice.below(60) as i64));
    let ranks = job.ranks as usize;
    let mut world = World {
        job,
        programs,
        made: vec![Vec::new(); ranks],
        running: vec![Vec::new(); ranks],
        clocks: vec![0; ranks],
        stuck: stuck.map(|at| (rank, at)),
    };
    world.go(pace, late, stop, dice);
    let last = world.clocks.iter().copied().max().unwrap_or(0);
    let (wait, mut limit_ms) = match fault {
        // In some healthy jobs all wait for a checkpoint.
        Fault::Healthy if dice.below(4) == 0 => ((1 + dice.below(200) as i64) * 1000 * MS, LIMIT_MS),
        Fault::Healthy | Fault::Slow => (dice.below(20) as i64 * MS, LIMIT_MS),
        Fault::SlowStart => ((1 + dice.below(200) as i64) * 1000 * MS, LIMIT_MS),
        _ => ((400 + dice.below(400) as i64) * 1000 * MS, LIMIT_MS),
    };
    let mut made = world.made;
    if fault == Fault::ShortTimeout {
        limit_ms = 10_000;
        come_late(job, &mut made, rank, limit_ms * MS);
    }
    let written = stop.unwrap_or(last).max(last) + wait;
    if !fault.is_healthy() && fault != Fault::ShortTimeout {
        time_out(&mut made, written - limit_ms * MS);
    }
    Ran { made, written, limit_ms }
}

/// The number of the call in the program of the rank that the fault is at.
fn at(job: &SeededJob, fault: Fault, rank: u32, dice: &mut Dice) -> usize {
    let acts = &job.step[rank as usize];
    let base = job.begin(rank, 1 + dice.below(job.steps as u64 - 2) as usize);
    let fits = |at: &usize| {
        let (this, next) = (acts[*at], acts.get(at + 1));
        match fault {
            Fault::MissingSend => matches!(this.message, Some(MessageEnd::SendTo(_))),
            Fault::MissingReceive => matches!(this.message, Some(MessageEnd::ReceiveFrom(_))),
            // Other calls than these may end all the same.
            Fault::Order => next.is_some_and(|next| next.group == 0 && this.group != 0),
            // Ranks may give different numbers of elements in an all-to-all.
            Fault::OtherSize => this.message.is_none() && this.name != "all_to_all",
            Fault::OtherOperation | Fault::OtherType | Fault::LeftOut | Fault::Extra => {
                this.message.is_none()
            }
            _ => true,
        }
    };
    let able: Vec<usize> = (0..acts.len()).filter(fits).collect();
    match fault {
        Fault::LateStart => 0,
        Fault::GroupOfOtherRanks => {
            acts.iter().position(|act| act.group == 0 && act.message.is_none()).unwrap_or(0)
        }
        _ => base + if able.is_empty() { 0 } else { dice.of(&able) },
    }
}

/// Puts the fault into the program of its rank.
fn break_program(acts: &mut Vec<Act>, fault: Fault, at: usize, dice: &mut Dice) {
    match fault {
        Fault::Died
        | Fault::Silent
        | Fault::Elsewhere
        | Fault::Failed
        | Fault::LateStart
        | Fault::ShortTimeout
        | Fault::LostNode => acts.truncate(at),
        Fault::OtherOperation => {
            let other = if acts[at].name == "broadcast" { "all_reduce" } else { "broadcast" };
            acts[at].name = other;
        }
        Fault::OtherSize => acts[at].count += dice.of(&[3, 17, 23]),
        Fault::OtherType => acts[at].dtype = "Double",
        Fault::LeftOut | Fault::MissingSend | Fault::MissingReceive => drop(acts.remove(at)),
        Fault::Extra => acts.insert(at, Act { name: "all_reduce", count: 7, line: 95, ..acts[at] }),
        Fault::Order => acts.swap(at, at + 1),
        _ => {}
    }
}

/// The first operation that a rank waits in, if the rank called it before this time, has timed out.
fn time_out(made: &mut [Vec<Made>], before: i64) {
    for calls in made {
        let open = calls.iter_mut().find(|call| call.state != OpState::Done);
        if let Some(call) = open.filter(|call| call.called < before) {
            call.state = OpState::Failed;
        }
    }
}

/// The rank comes to the operation that the others wait in, after they have timed out.
fn come_late(job: &SeededJob, made: &mut [Vec<Made>], rank: u32, limit: i64) {
    let entered =
        |group: usize| made[rank as usize].iter().filter(|call| call.act.group == group).count() as u64;
    let lacks = |call: &&Made| {
        let (group, open) = (call.act.group, call.state != OpState::Done);
        open && job.groups[group].2.contains(&rank) && entered(group) == call.sequence
    };
    let first = made.iter().flatten().filter(lacks).min_by_key(|call| call.called).copied();
    let Some(awaited) = first else { return };
    for call in made.iter_mut().flatten().filter(|call| call.state != OpState::Done) {
        call.state = OpState::Failed;
    }
    let called = awaited.called + limit + limit / 20;
    made[rank as usize].push(Made { called, state: OpState::Called, ended: 0, ..awaited });
}

struct World<'a> {
    job: &'a SeededJob,
    programs: Vec<Vec<Act>>,
    made: Vec<Vec<Made>>,
    /// The numbers of each rank's calls that have not ended.
    running: Vec<Vec<usize>>,
    clocks: Vec<i64>,
    /// The call that never ends: the rank, and its number in the rank's program.
    stuck: Option<(u32, usize)>,
}

/// The calls of one operation: the ranks and the numbers of their calls.
type Parts = Vec<(u32, usize)>;

/// An operation: its group, sequence and, for a message, sender and receiver.
type Key = (usize, u64, Option<(u32, u32)>);

fn key(rank: u32, call: &Made) -> Key {
    let ends = call.act.message.map(|message| match message {
        MessageEnd::SendTo(peer) => (rank, peer),
        MessageEnd::ReceiveFrom(peer) => (peer, rank),
    });
    (call.act.group, call.sequence, ends)
}

impl World<'_> {
    /// Lets ranks call and operations end until nothing moves, or time is up.
    fn go(&mut self, pace: i64, late: Option<(u32, i64)>, stop: Option<i64>, dice: &mut Dice) {
        let mut counts: BTreeMap<(u32, usize, Option<MessageEnd>), u64> = BTreeMap::new();
        let mut open: BTreeMap<Key, Parts> = BTreeMap::new();
        loop {
            let able = |rank: &u32| {
                let at = *rank as usize;
                let room = if self.job.ahead { AHEAD } else { 1 };
                self.made[at].len() < self.programs[at].len()
                    && self.running[at].len() < room
                    && stop.is_none_or(|stop| self.clocks[at] < stop)
            };
            let next = (0..self.job.ranks).filter(able).min_by_key(|rank| self.clocks[*rank as usize]);
            let Some(rank) = next else { return };
            let at = rank as usize;
            let number = self.made[at].len();
            let act = self.programs[at][number];
            let slow = late.filter(|(slow, _)| *slow == rank).map_or(0, |(_, by)| by);
            let called = self.clocks[at] + pace / 10 + dice.below(pace as u64 / 10) as i64 + slow;
            let count = counts.entry((rank, act.group, act.message)).or_default();
            let call = Made { act, sequence: *count, state: OpState::Called, called, ended: 0 };
            *count += 1;
            self.clocks[at] = called;
            self.made[at].push(call);
            self.running[at].push(number);
            open.entry(key(rank, &call)).or_default().push((rank, number));
            self.settle(&mut open, vec![key(rank, &call)], stop);
        }
    }

    /// Whether a call's turn has come on its rank: those before it on its stream have ended.
    fn is_first(&self, (rank, number): (u32, usize)) -> bool {
        let made = &self.made[rank as usize];
        let mut before = self.running[rank as usize].iter().take_while(|other| **other != number);
        before.all(|other| self.job.streams && made[*other].act.group != made[number].act.group)
    }

    /// Starts and ends what can start and end, of these operations and of those that wait for them.
    fn settle(&mut self, open: &mut BTreeMap<Key, Parts>, mut due: Vec<Key>, stop: Option<i64>) {
        while let Some(next) = due.pop() {
            let Some(parts) = open.get(&next) else { continue };
            let ready: Parts = parts.iter().filter(|part| self.is_first(**part)).copied().collect();
            for (rank, number) in &ready {
                let call = &mut self.made[*rank as usize][*number];
                if self.job.ahead && call.state == OpState::Called {
                    call.state = OpState::Started;
                }
            }
            let wanted = next.2.map_or(self.job.groups[next.0].2.len(), |_| 2);
            let of = |(rank, number): &(u32, usize)| self.made[*rank as usize][*number];
            // What ranks give in an all-to-all may differ.
            let alike =
                |act: &Act| (act.name, if act.name == "all_to_all" { 0 } else { act.count }, act.dtype);
            let same = ready
                .iter()
                .all(|part| next.2.is_some() || alike(&of(part).act) == alike(&of(&ready[0]).act));
            let never = self.stuck.is_some_and(|(rank, at)| ready.contains(&(rank, at)));
            if ready.len() < wanted || !same || never {
                continue;
            }
            let ended =
                ready.iter().map(|part| of(part).called.max(self.busy(part))).max().unwrap_or(0) + MS / 2;
            if stop.is_some_and(|stop| ended > stop) {
                continue;
            }
            for (rank, number) in ready {
                let at = rank as usize;
                let call = &mut self.made[at][number];
                (call.state, call.ended) = (OpState::Done, ended);
                if !self.job.ahead {
                    self.clocks[at] = self.clocks[at].max(ended);
                }
                self.running[at].retain(|other| *other != number);
                due.extend(self.running[at].iter().map(|number| key(rank, &self.made[at][*number])));
            }
            open.remove(&next);
        }
    }

    /// When the call before this one had ended on its rank.
    fn busy(&self, (rank, number): &(u32, usize)) -> i64 {
        number.checked_sub(1).map_or(0, |before| self.made[*rank as usize][before].ended)
    }
}
