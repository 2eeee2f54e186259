#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Lanes that are rotated over the NICs of a node are proved, and claim no symmetry that they do not have.

use allfold_schedules::check;
use allfold_schedules::registry::{ALGORITHMS, Shape};
use allfold_schedules::schedule::{Permutation, Rank, Rotated, Schedule, over_nics};

#[test]
fn every_algorithm_without_a_root_is_proved_on_rotated_lanes() {
    for row in ALGORITHMS
        .iter()
        .filter(|row| ["all_reduce", "all_gather", "reduce_scatter"].contains(&row.collective.name()))
    {
        for (ranks, devices, nics) in [(4, 2, 2), (8, 4, 2), (8, 4, 4), (12, 3, 2), (16, 8, 8), (6, 6, 1)] {
            for lanes in [1, 2, 3, 8, 16] {
                let plain = row.build(Shape::new(ranks).unwrap()).unwrap();
                let schedule = over_nics(plain, lanes, devices, nics);
                let proof = check::check(&schedule, row.collective, Rank(0));
                assert!(
                    proof.is_ok(),
                    "{} by {}, {ranks} {devices} {nics} {lanes}",
                    row.collective,
                    row.name
                );
            }
        }
    }
}

/// A renumbering that a rotated schedule names maps every send of a round to a send of the same round.
#[test]
fn named_symmetries_map_sends_to_sends() {
    let (ranks, devices) = (16u32, 4);
    let mut named = 0;
    for row in ALGORITHMS
        .iter()
        .filter(|row| ["all_reduce", "all_gather", "reduce_scatter"].contains(&row.collective.name()))
    {
        for by in 0..devices {
            let schedule = Rotated::new(row.build(Shape::new(ranks).unwrap()).unwrap(), devices, by);
            for permutation in schedule.symmetry() {
                let moved = |rank: Rank| match permutation {
                    Permutation::Rotate(d) => Rank((rank.0 + d) % ranks),
                    Permutation::Xor(mask) => Rank(rank.0 ^ mask),
                };
                named += 1;
                for round in 0..schedule.rounds() {
                    for rank in (0..ranks).map(Rank) {
                        let to = |rank: Rank| schedule.step(rank, round).send.map(|(peer, _)| peer);
                        let expected = to(rank).map(moved);
                        assert_eq!(to(moved(rank)), expected, "{} {by} {permutation:?} {round}", row.name);
                    }
                }
            }
        }
    }
    assert!(named > 20, "{named} symmetries were looked at");
}

#[test]
fn lanes_with_equal_rotations_are_replicated_and_others_are_not() {
    let ring = |lanes| {
        let row = ALGORITHMS
            .iter()
            .find(|row| row.name == "ring" && row.collective.name() == "all_reduce")
            .unwrap();
        over_nics(row.build(Shape::new(16).unwrap()).unwrap(), lanes, 8, 8)
    };
    assert!(ring(8).replicated_lanes().is_none());
    assert_eq!(ring(32).replicated_lanes().map(|(lanes, _)| lanes), Some(4));
    assert!(ring(12).replicated_lanes().is_none());
    // Eight lanes leave the first node from eight different ranks.
    let schedule = ring(8);
    let leaves = |lane: u64| {
        let to = |rank: u32| schedule.step(Rank(rank), lane).send.map(|(peer, _)| peer.0);
        (0..8).find(|rank| to(*rank).is_some_and(|peer| peer >= 8)).unwrap()
    };
    let mut ranks: Vec<u32> = (0..8).map(leaves).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..8).collect::<Vec<u32>>());
}
