#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! The execution rule on random matched schedules: the executor keeps their meaning for every window and never
//! deadlocks. In a model without the rule "in program order" some schedules deadlock, so the rule is needed.

use allfold_collectives::registry::Algorithm;
use allfold_collectives::schedule::{Combine, Schedule, Span, Step};
use allfold_collectives::{Collective, Communicator, Error, Rank, ReduceOp, World};
use allfold_sim::Topology;
use allfold_sim::hash::SplitMix;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CHUNKS: u32 = 4;

/// A number below `n`.
fn below(random: &mut SplitMix, n: u32) -> u32 {
    (random.word() % u64::from(n)) as u32
}

/// Every rank sends to one rank and receives from one in most rounds; spans overlap at random. Idle rounds follow, so many that the
/// schedule runs without a proof, which would refuse it, since it computes no all-reduce.
struct Random {
    ranks: u32,
    steps: Vec<Vec<Step>>,
}

impl Random {
    fn new(ranks: u32, rounds: usize, seed: u64) -> Random {
        let mut rng = SplitMix(seed);
        let mut steps = vec![vec![Step::IDLE; ranks as usize]; rounds];
        for round in &mut steps {
            // A random permutation: r sends to its image, unless the pair is left out.
            let mut image: Vec<u32> = (0..ranks).collect();
            for i in (1..ranks as usize).rev() {
                image.swap(i, below(&mut rng, i as u32 + 1) as usize);
            }
            for (from, to) in (0..ranks).zip(image) {
                if below(&mut rng, 4) == 0 {
                    continue;
                }
                let len = 1 + below(&mut rng, 2);
                let mut span = || Span::data(below(&mut rng, CHUNKS - len + 1), len);
                let (out, into) = (span(), span());
                let how = if below(&mut rng, 2) == 0 { Combine::Copy } else { Combine::Reduce };
                round[from as usize].send = Some((Rank(to), out));
                round[to as usize].recv = Some((Rank(from), into, how));
            }
            // A rank that sends to itself also receives from itself.
            for (rank, step) in (0..ranks).zip(round.iter_mut()) {
                let own = |peer: Option<Rank>| peer == Some(Rank(rank));
                assert_eq!(own(step.send.map(|s| s.0)), own(step.recv.map(|r| r.0)));
            }
        }
        Random { ranks, steps }
    }
}

impl Schedule for Random {
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        CHUNKS
    }
    fn rounds(&self) -> u64 {
        1 << 20
    }
    fn active(&self, _: Rank) -> Range<u64> {
        0..self.steps.len() as u64
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        self.steps.get(round as usize).map_or(Step::IDLE, |steps| steps[rank.index()])
    }
}

/// The meaning of rounds: in each round every rank sends the values from before the round.
fn meaning(schedule: &Random, mut data: Vec<Vec<i64>>) -> Vec<Vec<i64>> {
    for round in &schedule.steps {
        let before = data.clone();
        for (rank, step) in round.iter().enumerate() {
            let Some((from, into, how)) = step.recv else { continue };
            let (_, span) = round[from.index()].send.unwrap();
            for i in 0..into.chunks {
                let value = before[from.index()][(span.first_chunk + i) as usize];
                let place = &mut data[rank][(into.first_chunk + i) as usize];
                *place = if how == Combine::Copy { value } else { place.wrapping_add(value) };
            }
        }
    }
    data
}

static SEED: AtomicU64 = AtomicU64::new(0);
static RANDOM: Algorithm =
    Algorithm::new(Collective::AllReduce, "random", "a random matched schedule", |shape| {
        Arc::new(Random::new(shape.ranks(), 30, SEED.load(Ordering::SeqCst)))
    });

#[test]
fn random_matched_schedules_keep_their_meaning_for_every_window_without_buffering() {
    for seed in 0..60 {
        let (ranks, window) = (2 + seed as u32 % 6, 1 + (seed as u32 * 7) % 64);
        SEED.store(seed, Ordering::SeqCst);
        let start = |rank: i64| (0..i64::from(CHUNKS)).map(|i| rank * 1000 + i * i + 1).collect::<Vec<i64>>();
        let data = (0..i64::from(ranks)).map(start).collect();
        let want = meaning(&Random::new(ranks, 30, seed), data);
        let topology = Topology::named("switch", ranks).unwrap();
        let threads = World::threads(ranks).buffered(0).deadline(Duration::from_secs(300));
        for world in [threads.any(), World::sim(&topology).any()] {
            let got = world.with(&RANDOM).window(window).run(|comm: Communicator| -> Result<_, Error> {
                let mut data = start(i64::from(comm.rank().0));
                comm.all_reduce(&mut data, ReduceOp::Sum).map(|()| data)
            });
            assert_eq!(got.unwrap(), want, "seed {seed}, window {window}");
        }
    }
}

/// A step in a rank's window.
struct Slot {
    round: usize,
    step: Step,
    posted: bool,
    sent: bool,
    received: bool,
}

/// The rounds of each channel (source, destination), on one of its sides, in the order in which they start.
type Started = BTreeMap<(usize, usize), VecDeque<usize>>;

/// A model of executors with no buffering. With `in_order` each side of a channel starts its messages in the order of its
/// program; without, in the order in which they become free of conflicts.
struct Model<'a> {
    schedule: &'a Random,
    window: usize,
    in_order: bool,
    windows: Vec<VecDeque<Slot>>,
    next: Vec<usize>,
    sends: Started,
    receives: Started,
}

impl Model<'_> {
    /// Whether the schedule ends.
    fn finishes(schedule: &Random, window: usize, in_order: bool) -> bool {
        let n = schedule.ranks as usize;
        let windows = (0..n).map(|_| VecDeque::new()).collect();
        let (sends, receives) = (Started::new(), Started::new());
        let mut model = Model { schedule, window, in_order, windows, next: vec![0; n], sends, receives };
        loop {
            let mut moved = false;
            for rank in 0..n {
                moved |= model.issue(rank);
                moved |= model.post(rank);
            }
            moved |= model.transfer();
            moved |= model.retire();
            if !moved {
                return model.windows.iter().all(VecDeque::is_empty);
            }
        }
    }

    /// Rule 1: fills a rank's window with the next steps of its program.
    fn issue(&mut self, rank: usize) -> bool {
        let mut moved = false;
        while self.windows[rank].len() < self.window && self.next[rank] < self.schedule.steps.len() {
            let (round, step) = (self.next[rank], self.schedule.steps[self.next[rank]][rank]);
            self.next[rank] += 1;
            if step.is_idle() {
                continue;
            }
            if self.in_order && !is_local(&step, rank) {
                self.start(rank, round, &step);
            }
            let (sent, received) = (step.send.is_none(), step.recv.is_none());
            self.windows[rank].push_back(Slot { round, step, posted: false, sent, received });
            moved = true;
        }
        moved
    }

    /// Rules 3 and 4: posts both halves of every step that conflicts with no earlier unfinished step.
    fn post(&mut self, rank: usize) -> bool {
        let mut moved = false;
        for at in 0..self.windows[rank].len() {
            let slot = &self.windows[rank][at];
            let waits =
                |earlier: &Slot| !(earlier.sent && earlier.received) && conflict(&earlier.step, &slot.step);
            if slot.posted || self.windows[rank].range(..at).any(waits) {
                continue;
            }
            moved = true;
            let slot = &mut self.windows[rank][at];
            slot.posted = true;
            let (round, step) = (slot.round, slot.step);
            if is_local(&step, rank) {
                (slot.sent, slot.received) = (true, true);
            } else if !self.in_order {
                self.start(rank, round, &step);
            }
        }
        moved
    }

    /// Appends a step's halves to their channels.
    fn start(&mut self, rank: usize, round: usize, step: &Step) {
        if let Some((to, _)) = step.send {
            self.sends.entry((rank, to.index())).or_default().push_back(round);
        }
        if let Some((from, ..)) = step.recv {
            self.receives.entry((from.index(), rank)).or_default().push_back(round);
        }
    }

    /// Rule 2: moves the message at the head of every channel whose two sides have posted the same round.
    fn transfer(&mut self) -> bool {
        let mut moved = false;
        for (&(from, to), out) in &mut self.sends {
            let into = self.receives.entry((from, to)).or_default();
            while let (Some(&a), Some(&b)) = (out.front(), into.front()) {
                let posted =
                    |rank: usize| self.windows[rank].iter().any(|slot| slot.round == a && slot.posted);
                if a != b || !posted(from) || !posted(to) {
                    break;
                }
                out.pop_front();
                into.pop_front();
                self.windows[from]
                    .iter_mut()
                    .filter(|slot| slot.round == a)
                    .for_each(|slot| slot.sent = true);
                self.windows[to]
                    .iter_mut()
                    .filter(|slot| slot.round == a)
                    .for_each(|slot| slot.received = true);
                moved = true;
            }
        }
        moved
    }

    /// Removes finished steps from the front of every window.
    fn retire(&mut self) -> bool {
        let mut moved = false;
        for window in &mut self.windows {
            while window.front().is_some_and(|slot| slot.sent && slot.received) {
                window.pop_front();
                moved = true;
            }
        }
        moved
    }
}

/// Whether a step moves data within its rank's memory.
fn is_local(step: &Step, rank: usize) -> bool {
    step.send.is_some_and(|(to, _)| to.index() == rank)
}

/// Rule 3, written independently of `Step::conflicts`.
fn conflict(a: &Step, b: &Step) -> bool {
    let hits = |w: &Step, t: &Step| {
        w.recv.is_some_and(|(_, span, _)| {
            t.send.is_some_and(|(_, s)| s.overlaps(&span))
                || t.recv.is_some_and(|(_, s, _)| s.overlaps(&span))
        })
    };
    hits(a, b) || hits(b, a)
}

#[test]
fn without_program_order_a_share_of_random_schedules_deadlocks_and_with_it_none() {
    const SCHEDULES: u64 = 1_000;
    for window in 3..=8 {
        let (mut stuck, mut stuck_in_order) = (0, 0);
        for seed in 0..SCHEDULES {
            let schedule = Random::new(3 + seed as u32 % 4, 30, 1_000_000 + seed);
            stuck += u64::from(!Model::finishes(&schedule, window, false));
            stuck_in_order += u64::from(!Model::finishes(&schedule, window, true));
        }
        println!("window {window}: {stuck} of {SCHEDULES} deadlock out of order, {stuck_in_order} in order");
        assert_eq!(stuck_in_order, 0, "window {window}");
        assert!(stuck * 100 > SCHEDULES, "window {window}: only {stuck} of {SCHEDULES} deadlock");
    }
}
