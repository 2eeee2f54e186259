#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! The execution rule on random matched schedules: the executor keeps their meaning for every window and never
//! deadlocks; without "in program order" a share of them does, so the rule is needed.

use allfold_collectives::registry::Algorithm;
use allfold_collectives::schedule::{Combine, Schedule, Span, Step};
use allfold_collectives::{Collective, Communicator, Error, Rank, ReduceOp, World};
use allfold_sim::Topology;
use allfold_sim::hash::SplitMix;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CHUNKS: u32 = 4;

/// A number below `n`.
fn below(random: &mut SplitMix, n: u32) -> u32 {
    (random.word() % u64::from(n)) as u32
}

/// Every rank sends to one rank and receives from one in most rounds; spans overlap at random.
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
            // One half of a local step alone would be no step.
            for (rank, step) in (0..ranks).zip(round.iter_mut()) {
                let own = |peer: Option<Rank>| peer == Some(Rank(rank));
                debug_assert_eq!(own(step.send.map(|s| s.0)), own(step.recv.map(|r| r.0)));
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
        self.steps.len() as u64
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        self.steps[round as usize][rank.index()]
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
        let threads = World::threads(ranks).buffered(0).deadline(Duration::from_secs(20));
        for world in [threads.any(), World::sim(&topology).any()] {
            let got = world.with(&RANDOM).window(window).run(|comm: Communicator| -> Result<_, Error> {
                let mut data = start(i64::from(comm.rank().0));
                comm.all_reduce(&mut data, ReduceOp::Sum).map(|()| data)
            });
            assert_eq!(got.unwrap(), want, "seed {seed}, window {window}");
        }
    }
}

/// A model of executors with no buffering: does it come to an end? With `in_order` each side of a channel starts its
/// messages in the order of its program; without, in the order in which they become free of conflicts.
#[allow(clippy::too_many_lines, reason = "the execution rule, read from top to bottom beside its definition")]
fn finishes(schedule: &Random, window: usize, in_order: bool) -> bool {
    struct Slot {
        round: usize,
        step: Step,
        posted: bool,
        sent: bool,
        received: bool,
    }
    let conflict = |a: &Step, b: &Step| {
        let hits = |w: &Step, t: &Step| {
            w.recv.is_some_and(|(_, span, _)| {
                t.send.is_some_and(|(_, s)| s.overlaps(&span))
                    || t.recv.is_some_and(|(_, s, _)| s.overlaps(&span))
            })
        };
        hits(a, b) || hits(b, a)
    };
    let n = schedule.ranks as usize;
    let mut windows: Vec<VecDeque<Slot>> = (0..n).map(|_| VecDeque::new()).collect();
    let mut next = vec![0; n];
    // Rounds on each side of a channel, in the order in which they start.
    let mut sends: BTreeMap<(usize, usize), VecDeque<usize>> = BTreeMap::new();
    let mut receives: BTreeMap<(usize, usize), VecDeque<usize>> = BTreeMap::new();
    loop {
        let mut moved = false;
        for rank in 0..n {
            while windows[rank].len() < window && next[rank] < schedule.steps.len() {
                let (round, step) = (next[rank], schedule.steps[next[rank]][rank]);
                next[rank] += 1;
                if step.is_idle() {
                    continue;
                }
                let own = step.send.is_some_and(|(to, _)| to.index() == rank);
                if in_order && !own {
                    step.send
                        .iter()
                        .for_each(|(to, _)| sends.entry((rank, to.index())).or_default().push_back(round));
                    step.recv.iter().for_each(|(from, ..)| {
                        receives.entry((from.index(), rank)).or_default().push_back(round)
                    });
                }
                let (sent, received) = (step.send.is_none(), step.recv.is_none());
                windows[rank].push_back(Slot { round, step, posted: false, sent, received });
                moved = true;
            }
            for at in 0..windows[rank].len() {
                let slot = &windows[rank][at];
                let earlier = windows[rank].range(..at);
                if slot.posted
                    || earlier.into_iter().any(|e| !(e.sent && e.received) && conflict(&e.step, &slot.step))
                {
                    continue;
                }
                moved = true;
                let slot = &mut windows[rank][at];
                slot.posted = true;
                let (round, step) = (slot.round, slot.step);
                if step.send.is_some_and(|(to, _)| to.index() == rank) {
                    (slot.sent, slot.received) = (true, true);
                } else if !in_order {
                    step.send
                        .iter()
                        .for_each(|(to, _)| sends.entry((rank, to.index())).or_default().push_back(round));
                    step.recv.iter().for_each(|(from, ..)| {
                        receives.entry((from.index(), rank)).or_default().push_back(round)
                    });
                }
            }
        }
        let posted = |windows: &[VecDeque<Slot>], rank: usize, round: usize| {
            windows[rank].iter().any(|slot| slot.round == round && slot.posted)
        };
        for (&(from, to), out) in &mut sends {
            let into = receives.entry((from, to)).or_default();
            while let (Some(&a), Some(&b)) = (out.front(), into.front()) {
                if a != b || !posted(&windows, from, a) || !posted(&windows, to, b) {
                    break;
                }
                out.pop_front();
                into.pop_front();
                windows[from].iter_mut().filter(|slot| slot.round == a).for_each(|slot| slot.sent = true);
                windows[to].iter_mut().filter(|slot| slot.round == a).for_each(|slot| slot.received = true);
                moved = true;
            }
        }
        for window in &mut windows {
            while window.front().is_some_and(|slot| slot.sent && slot.received) {
                window.pop_front();
                moved = true;
            }
        }
        if !moved {
            return windows.iter().all(VecDeque::is_empty);
        }
    }
}

#[test]
fn without_program_order_a_share_of_random_schedules_deadlocks_and_with_it_none() {
    const SCHEDULES: u64 = 1_000;
    for window in 3..=8 {
        let (mut stuck, mut stuck_in_order) = (0, 0);
        for seed in 0..SCHEDULES {
            let schedule = Random::new(3 + seed as u32 % 4, 30, 1_000_000 + seed);
            stuck += u64::from(!finishes(&schedule, window, false));
            stuck_in_order += u64::from(!finishes(&schedule, window, true));
        }
        println!("window {window}: {stuck} of {SCHEDULES} deadlock out of order, {stuck_in_order} in order");
        assert_eq!(stuck_in_order, 0, "window {window}");
        assert!(stuck * 100 > SCHEDULES, "window {window}: only {stuck} of {SCHEDULES} deadlock");
    }
}
