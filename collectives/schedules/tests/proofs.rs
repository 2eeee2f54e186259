#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Tests that every registered algorithm is proved, that mistakes seeded into correct algorithms are found, and that reduction
//! orders are as documented.

use allfold_schedules::algorithms::{BinaryTree, RingAllReduce, halving_doubling};
use allfold_schedules::check::{self, Order, matching, matching_round, symbolic};
use allfold_schedules::registry::{self, ALGORITHMS, Shape};
use allfold_schedules::schedule::{
    Combine, Lanes, Rank, Schedule, ScheduleTable, Segments, Step, then_reverse,
};
use allfold_schedules::{Collective, render};
use std::collections::BTreeSet;
use std::sync::Arc;

const PROVED: [u32; 34] = {
    let mut ranks = [64; 34];
    let mut at = 0;
    while at < 33 {
        ranks[at] = at as u32 + 1;
        at += 1;
    }
    ranks
};

#[test]
fn every_algorithm_of_every_collective_is_proved() {
    for row in ALGORITHMS {
        for ranks in PROVED {
            let verdict = check::verify(row, Shape::new(ranks).unwrap());
            assert!(verdict.ok(), "{} by {}, {ranks} ranks: {:?}", row.collective, row.name, verdict.failure);
            assert_eq!(verdict.order.is_some(), row.collective.reduces());
        }
    }
}

#[test]
fn every_group_size_of_a_hierarchy_is_proved() {
    for row in ALGORITHMS.iter().filter(|row| row.name == "hierarchical") {
        for ranks in 1..=30u32 {
            for group in (1..=ranks).filter(|group| ranks.is_multiple_of(*group)) {
                let verdict = check::verify(row, Shape::new(ranks).unwrap().grouped(group).unwrap());
                assert!(verdict.ok(), "{} of {ranks} in {group}: {:?}", row.collective, verdict.failure);
            }
        }
    }
}

/// All canonical algorithms have one tree hash, for every collective and root; the other orders are as documented.
#[test]
fn orders_are_as_documented() {
    for ranks in (4..=17).chain([24, 33]) {
        let mut canonical = BTreeSet::new();
        for row in ALGORITHMS.iter().filter(|row| row.collective.reduces()) {
            for root in [0, ranks / 2, ranks - 1] {
                let shape = Shape::new(ranks).unwrap().rooted(Rank(root)).unwrap();
                let verdict = check::verify(row, shape);
                let order = verdict.order.unwrap();
                canonical.extend(verdict.tree.filter(|_| order == Order::Canonical));
                let expected = match row.name {
                    "ring" | "double_binary_tree" => Order::Positional,
                    "chain" | "binary_tree" => Order::Uniform,
                    "hierarchical" if ranks.is_power_of_two() => Order::Canonical,
                    "hierarchical" => order,
                    _ => Order::Canonical,
                };
                assert_eq!(order, expected, "{} by {}, {ranks} ranks", row.collective, row.name);
            }
        }
        assert_eq!(canonical.len(), 1, "{ranks} ranks");
    }
}

/// The automatic choice selects canonical algorithms only, so that a buffer's size never changes the bits of the result.
#[test]
fn automatic_choice_is_canonical() {
    for ranks in 1..=33 {
        let shape = Shape::new(ranks).unwrap();
        for collective in Collective::ALL.into_iter().filter(|collective| collective.reduces()) {
            for bytes in [0, 1 << 15, 1 << 16, 1 << 30] {
                let row = registry::auto(collective, shape, bytes);
                assert_eq!(check::verify(row, shape).order, Some(Order::Canonical), "{}", row.name);
            }
        }
    }
}

/// Segments at any stride keep the order and the tree of every all-reduce; lanes keep a tree that is the same for every chunk.
#[test]
fn segments_at_any_stride_keep_every_tree() {
    for row in registry::of(Collective::AllReduce) {
        for ranks in [1, 2, 3, 5, 8, 13] {
            let plain = row.build(Shape::new(ranks).unwrap()).unwrap();
            let proof = check::check(&plain, Collective::AllReduce, Rank(0)).unwrap();
            for stride in [0, 1, 2, 5, plain.rounds()] {
                let cut = Segments::with_stride(plain.clone(), 4, stride);
                let cut = check::check(&cut, Collective::AllReduce, Rank(0)).unwrap();
                assert_eq!((cut.order(), cut.hash()), (proof.order(), proof.hash()), "{} {ranks}", row.name);
            }
            let both = Segments::new(Lanes::split(plain.clone(), 3), 2);
            let both = check::check(&both, Collective::AllReduce, Rank(0)).unwrap();
            if proof.order() != Some(Order::Positional) {
                assert_eq!(both.hash(), proof.hash(), "{} {ranks}", row.name);
            }
        }
    }
}

/// A schedule with one seeded mistake.
struct Mistake<S> {
    of: S,
    seed: fn(&S, Rank, u64, Step) -> Step,
    rounds: i64,
}

impl<S: Schedule> Schedule for Mistake<S> {
    fn ranks(&self) -> u32 {
        self.of.ranks()
    }
    fn chunks(&self) -> u32 {
        self.of.chunks()
    }
    fn rounds(&self) -> u64 {
        self.of.rounds().saturating_add_signed(self.rounds)
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        (self.seed)(&self.of, rank, round, self.of.step(rank, round))
    }
}

/// Whether each checker finds a mistake: (matching, symbolic).
fn caught<S: Schedule>(of: S, rounds: i64, seed: fn(&S, Rank, u64, Step) -> Step) -> (bool, bool) {
    let wrong = Mistake { of, seed, rounds };
    let all_reduce = Collective::AllReduce;
    (matching(&wrong, all_reduce).is_err(), symbolic(&wrong, all_reduce, Rank(0)).is_err())
}

fn map_recv(step: Step, how: impl Fn(Combine) -> Combine) -> Step {
    Step { recv: step.recv.map(|(from, span, combine)| (from, span, how(combine))), ..step }
}

fn shift(step: Step, chunks: u32, send: u32, recv: u32) -> Step {
    let mut step = step;
    step.send.iter_mut().for_each(|(_, span)| span.first_chunk = (span.first_chunk + send) % chunks);
    step.recv.iter_mut().for_each(|(_, span, _)| span.first_chunk = (span.first_chunk + recv) % chunks);
    step
}

#[test]
fn mistakes_in_a_ring_are_caught_by_one_checker_or_the_other() {
    let ring = || RingAllReduce(6);
    let results = [
        // 1. Rank 2 sends to the wrong peer once.
        caught(ring(), 0, |_, rank, round, mut step| {
            step.send.iter_mut().for_each(|(to, _)| to.0 = if (rank.0, round) == (2, 3) { 5 } else { to.0 });
            step
        }),
        // 2. Every rank sends the next chunk instead of the right one.
        caught(ring(), 0, |_, _, _, step| shift(step, 6, 1, 0)),
        // 3. Every rank copies where it should reduce, in the last reducing round.
        caught(ring(), 0, |_, _, round, step| {
            map_recv(step, |how| if round == 4 { Combine::Copy } else { how })
        }),
        // 4. One round is missing.
        caught(ring(), -1, |_, _, _, step| step),
        // 5. Rank 1 sends the same chunk twice, and omits the next one.
        caught(ring(), 0, |ring, rank, round, step| {
            if (rank.0, round) == (1, 7) { Step { send: ring.step(rank, 6).send, ..step } } else { step }
        }),
        // 6. The two halves are swapped: results are copied before they exist.
        caught(ring(), 0, |ring, rank, round, _| ring.step(rank, (round + 5) % 10)),
        // 7. Every rank also reduces in the second phase.
        caught(ring(), 0, |_, _, _, step| map_recv(step, |_| Combine::Reduce)),
        // 8. Rank 4 does not send in round 2.
        caught(ring(), 0, |_, rank, round, step| Step {
            send: step.send.filter(|_| (rank.0, round) != (4, 2)),
            ..step
        }),
        // 9. Rank 0 sends once more after the end; no rank receives the message.
        caught(ring(), 1, |ring, rank, round, step| match round {
            10 => Step { send: ring.step(rank, 9).send.filter(|_| rank.0 == 0), recv: None },
            _ => step,
        }),
        // 10. Rank 3 receives two chunks where the peer sends one.
        caught(ring(), 0, |_, rank, round, mut step| {
            step.recv.iter_mut().for_each(|(_, span, _)| span.chunks += u32::from((rank.0, round) == (3, 0)));
            step
        }),
    ];
    for (nth, (matching, symbolic)) in results.iter().enumerate() {
        assert!(matching | symbolic, "mistake {} is caught by neither", nth + 1);
    }
    assert!(results.contains(&(true, false)), "symbolic alone would have sufficed");
    assert!(results.contains(&(false, true)), "matching alone would have sufficed");
}

#[test]
fn mistakes_in_trees_and_halving_are_caught() {
    let tree = || then_reverse(BinaryTree::new(7, Rank(0)));
    let results = [
        // Rank 5 does not send its data.
        caught(tree(), 0, |_, rank, round, step| Step {
            send: step.send.filter(|_| rank.0 != 5 || round > 5),
            ..step
        }),
        // Rank 0, the root, copies where it should reduce, so its own data are lost.
        caught(tree(), 0, |_, rank, _, step| {
            map_recv(step, |how| if rank.0 == 0 { Combine::Copy } else { how })
        }),
        // Results are reduced into partial sums on the way back from the root.
        caught(tree(), 0, |_, _, _, step| map_recv(step, |_| Combine::Reduce)),
        // The ranks of the last level do not receive the result.
        caught(tree(), -2, |_, _, _, step| step),
        // Halving: each rank keeps the half that it should send.
        caught(
            halving_doubling(8),
            0,
            |_, _, round, step| if round == 0 { shift(step, 8, 4, 4) } else { step },
        ),
        // Halving: one round of the reduce-scatter is missing.
        caught(halving_doubling(8), 0, |_, _, round, step| if round == 1 { Step::IDLE } else { step }),
        // Halving: in one round, partners have the wrong distance.
        caught(
            halving_doubling(8),
            0,
            |all, rank, round, step| {
                if round == 1 { all.step(rank, 0) } else { step }
            },
        ),
        // Folded to a power of two: the odd ranks of the pairs do not receive the result.
        caught(halving_doubling(6), -1, |_, _, _, step| step),
        // Folded to a power of two: the odd ranks' data are copied instead of reduced.
        caught(halving_doubling(6), 0, |_, _, round, step| {
            map_recv(step, |how| if round == 0 { Combine::Copy } else { how })
        }),
    ];
    for (nth, (matching, symbolic)) in results.iter().enumerate() {
        assert!(matching | symbolic, "mistake {} is caught by neither", nth + 1);
    }
}

/// Chunks 0 and 1 have the same size for even element counts only, so a schedule must not send one into the other.
#[test]
fn a_message_between_chunks_of_different_size_is_caught() {
    struct Crossed;
    impl Schedule for Crossed {
        fn ranks(&self) -> u32 {
            2
        }
        fn chunks(&self) -> u32 {
            2
        }
        fn rounds(&self) -> u64 {
            1
        }
        fn step(&self, rank: Rank, _: u64) -> Step {
            let (peer, span) = (Rank(1 - rank.0), allfold_schedules::schedule::Span::data);
            Step { send: Some((peer, span(0, 1))), recv: Some((peer, span(1, 1), Combine::Copy)) }
        }
    }
    let flaw = matching(&Crossed, Collective::AllReduce).unwrap_err();
    assert!(flaw.what.contains("whose sizes differ"), "{flaw}");
    assert!(matching(&Crossed, Collective::AllToAll).is_ok(), "blocks of an all-to-all are all equal");
}

/// False claims about `next` and about symmetries are found as well.
#[test]
fn false_claims_are_caught() {
    struct Liar(u8);
    impl Schedule for Liar {
        fn ranks(&self) -> u32 {
            5
        }
        fn chunks(&self) -> u32 {
            5
        }
        fn rounds(&self) -> u64 {
            8
        }
        fn step(&self, rank: Rank, round: u64) -> Step {
            RingAllReduce(5).step(rank, round)
        }
        fn next(&self, _: Rank, round: u64) -> Option<u64> {
            (round < 8).then_some(if self.0 == 0 { round | 1 } else { round })
        }
        fn symmetry(&self) -> Vec<allfold_schedules::schedule::Permutation> {
            use allfold_schedules::schedule::Permutation::{Rotate, Xor};
            match self.0 {
                1 => vec![Xor(1)],
                _ => vec![Rotate(3)],
            }
        }
    }
    assert!(check::claims(&Liar(0)).is_err());
    assert!(check::claims(&Liar(1)).is_err());
    assert!(check::claims(&Liar(2)).is_ok());
    // A ring that is mirrored turns the other way round, and three ranks are no blocks of two.
    for (ranks, block) in [(4, 1), (4, 2), (3, 2), (3, 0)] {
        let lanes = Lanes::split(RingAllReduce(ranks), 2).mirrored(block);
        let flaw = check::claims(&lanes).unwrap_err().to_string();
        assert!(flaw.contains("`mirrored_lanes`"), "{flaw}");
    }
}

/// A counterexample names the rank, the chunk, the expected value and the value found.
#[test]
fn counterexamples_contain_the_expected_value() {
    let wrong = Mistake { of: RingAllReduce(4), rounds: -1, seed: |_, _, _, step| step };
    let flaw = symbolic(&wrong, Collective::AllReduce, Rank(0)).unwrap_err();
    assert_eq!(
        flaw.to_string(),
        "rank 0, chunk 2: expected the reduction over all ranks, each counted once, found (0+(2+3)) of chunk 2; \
        rank 1 is missing"
    );
}

/// Schedules for 131,072 and for 100,003 ranks are built quickly, and the steps that the test samples match.
#[test]
fn schedules_of_a_hundred_thousand_ranks_are_cheap() {
    for row in ALGORITHMS {
        for ranks in [131_072, 100_003] {
            let shape = Shape::new(ranks).unwrap().rooted(Rank(ranks / 3)).unwrap();
            let schedule: Arc<dyn Schedule> = row.build(shape).unwrap();
            let rounds = schedule.rounds();
            for rank in [0, 1, 2, ranks / 3, ranks / 2 + 1, ranks - 1].map(Rank) {
                let first = schedule.next(rank, 0).unwrap();
                let later = [rounds / 3, rounds / 2, rounds - 1].map(|round| schedule.next(rank, round));
                for round in later.into_iter().flatten().chain([first]) {
                    let name = (row.collective, row.name);
                    matching_round(&schedule, Collective::AllReduce, round, [rank])
                        .or_else(|_| matching_round(&schedule, row.collective, round, [rank]))
                        .unwrap_or_else(|flaw| panic!("{name:?}: {flaw}"));
                }
            }
        }
    }
}

/// The drawing of a schedule of any size is small.
#[test]
fn pictures_are_drawn_for_any_size() {
    for row in ALGORITHMS {
        for ranks in [1, 2, 5, 8, 12, 40, 3000] {
            let schedule = row.build(Shape::new(ranks).unwrap()).unwrap();
            let picture = render::rounds(&schedule);
            assert!(picture.len() < 400_000 && picture.lines().all(|line| line.len() <= 200), "{}", row.name);
        }
    }
}

/// Tests of nested combinators: their claims hold, and they still compute the collective.
mod stacks {
    use super::*;
    use proptest::prelude::*;

    /// The number of cases for a property test: `PROPTEST_CASES` if it is set, otherwise `usual`.
    fn cases(usual: u32) -> u32 {
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
    }

    fn lanes(of: Arc<dyn Schedule>, count: usize) -> Arc<dyn Schedule> {
        if count == 1 { of } else { Arc::new(Lanes::split(of, count)) }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: cases(200), ..ProptestConfig::default() })]
        #[test]
        fn claims_of_combinators_hold(
            row in (0..ALGORITHMS.len()).prop_map(|at| &ALGORITHMS[at]),
            ranks in 1..20u32,
            root in any::<u32>(),
            (inner, outer, segments) in (1..4usize, 1..3usize, 1..6u32),
            stride in prop::option::of(0..12u64),
            written_out in any::<bool>(),
        ) {
            let root = Rank(root % ranks);
            let plain = row.build(Shape::new(ranks).unwrap().rooted(root).unwrap()).unwrap();
            let order = check::check(&plain, row.collective, root).unwrap().order();
            let laned = lanes(lanes(plain, inner), outer);
            let laned: Arc<dyn Schedule> =
                if written_out { Arc::new(ScheduleTable::copy_of(&laned)) } else { laned };
            let stride = stride.unwrap_or(laned.stride());
            let stack = Segments::with_stride(laned, segments, stride);
            let proof = check::check(&stack, row.collective, root).map_err(|flaw| {
                TestCaseError::fail(format!("{row:?}: {flaw}"))
            })?;
            if order != Some(Order::Positional) {
                prop_assert_eq!(proof.order(), order);
            }
        }
    }
}
