//! Properties of virtual time: engines agree to the picosecond, times respect their bounds, and equal runs give equal results.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_schedules::registry::{self, ALGORITHMS, Algorithm, Shape};
use allfold_schedules::schedule::{Schedule, Segments};
use allfold_schedules::{Collective, Geometry, Rank};
use allfold_sim::{BytesPerSec, Costs, Faults, Link, Picos, Sharing, Topology};
use allfold_timing::{Engine, Error, Job, Method, Outcome, simulate};
use proptest::prelude::*;
use std::sync::Arc;

const TOPOLOGIES: [&str; 8] =
    ["switch", "ring", "mesh", "nodes8", "nodes8x4", "nodes8x1", "nodes4x2", "nodes3"];

fn schedule(algorithm: &Algorithm, ranks: u32, root: u32, segments: u32) -> Arc<dyn Schedule> {
    let shape = Shape::new(ranks).unwrap().rooted(Rank(root % ranks)).unwrap();
    let schedule = algorithm.build(shape).unwrap();
    if segments == 1 { schedule } else { Arc::new(Segments::new(schedule, segments)) }
}

/// The geometry for a collective of about `count` elements.
fn geometry(collective: Collective, schedule: &dyn Schedule, count: u64) -> Geometry {
    match collective.blocked() {
        true => Geometry::blocked(schedule, count / u64::from(schedule.ranks())),
        false => Geometry::whole(schedule, count),
    }
}

fn all_reduce(name: &str, ranks: u32) -> Arc<dyn Schedule> {
    schedule(registry::find(Collective::AllReduce, name).unwrap(), ranks, 0, 1)
}

/// Costs that are all greater than zero, so that an engine that omits one of them fails.
fn dear() -> Costs {
    Costs {
        overhead: Picos(77_001),
        launch: Picos(1_000_003),
        memory: Some(BytesPerSec(1_555_000_000_000)),
        ..Costs::FREE
    }
}

fn assert_respects_bounds(outcome: &Outcome) {
    let bounds = outcome.bounds;
    assert!(
        outcome.time >= bounds.links && outcome.time >= bounds.chain && outcome.time >= bounds.collective
    );
}

/// The number of cases for a property test: `PROPTEST_CASES` if it is set, otherwise `usual`.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(400)))]

    /// For any algorithm on any wiring, times respect their bounds, the run repeats, and every applicable engine gives the same
    /// times.
    #[test]
    fn engines_agree_repeat_and_never_beat_their_bounds(
        algorithm in 0..ALGORITHMS.len(),
        ranks in prop_oneof![1u32..40, prop::sample::select(&[8u32, 16, 24, 32][..])],
        topology in prop::sample::select(&TOPOLOGIES[..]),
        count in prop_oneof![0u64..300, 0u64..3_000_000],
        root in 0u32..40,
        segments in 1u32..6,
        window in prop::sample::select(&[1u32, 1, 1, 2, 5, 64][..]),
        max_min in any::<bool>(),
        equal in any::<bool>(),
        slow in prop::bool::weighted(0.2),
    ) {
        let algorithm = &ALGORITHMS[algorithm];
        let schedule = schedule(algorithm, ranks, root, segments);
        let geometry = geometry(algorithm.collective, &*schedule, count);
        let geometry = if equal { geometry.rounded_up(&*schedule) } else { geometry };
        let topology = Topology::named(topology, ranks).unwrap();
        let rule = format!("slow_rank={}:x3", root % ranks);
        let faults = if slow { Faults::parse([rule.as_str()], &topology).unwrap() } else { Faults::NONE };
        let job = Job {
            costs: dear(),
            window,
            sharing: if max_min { Sharing::MaxMin } else { Sharing::Split }.into(),
            faults: &faults,
            collective: Some(algorithm.collective),
            ..Job::new(&*schedule, &geometry, 4, &topology)
        };
        let full = simulate(&job, Engine::Full).unwrap();
        assert_respects_bounds(&full);
        prop_assert_eq!(&simulate(&job, Engine::Full).unwrap(), &full);
        let events = simulate(&job, Engine::Events).unwrap();
        prop_assert_eq!(&events.finish, &full.finish);
        prop_assert_eq!(&events.links, &full.links);
        prop_assert_eq!(events.event_hash, full.event_hash);
        prop_assert_eq!(
            (events.messages, events.bytes, events.bounds),
            (full.messages, full.bytes, full.bounds)
        );
        match simulate(&job, Engine::BySymmetry) {
            Ok(by_symmetry) => {
                prop_assert_eq!(
                    (by_symmetry.time, by_symmetry.messages, by_symmetry.bytes, by_symmetry.bounds),
                    (full.time, full.messages, full.bytes, full.bounds)
                );
            }
            Err(error) => prop_assert!(matches!(error, Error::NoSymmetry { .. }), "{}", error),
        }
    }
}

/// Compares symmetry classes with stepping every rank, for ring and halving-doubling on a switch and on nodes of 8 with 1, 4 and 8
/// NICs.
#[test]
fn orbit_equals_full_to_the_picosecond() {
    for name in ["ring", "halving_doubling"] {
        for topology in ["switch", "nodes8", "nodes8x4", "nodes8x1"] {
            for ranks in [16, 64, 256] {
                for sharing in [Sharing::MaxMin, Sharing::Split] {
                    let schedule = all_reduce(name, ranks);
                    let geometry = Geometry::whole(&*schedule, u64::from(ranks) * 1_013);
                    let topology = Topology::named(topology, ranks).unwrap();
                    let job = Job {
                        costs: dear(),
                        sharing: sharing.into(),
                        ..Job::new(&*schedule, &geometry, 4, &topology)
                    };
                    let full = simulate(&job, Engine::Full).unwrap();
                    let by_symmetry = simulate(&job, Engine::BySymmetry).unwrap();
                    assert_eq!(by_symmetry.time, full.time, "{name} over {ranks} on {}", topology.name());
                    assert_eq!(
                        by_symmetry.bounds,
                        full.bounds,
                        "{name} over {ranks} on {} by {:?} and {:?}",
                        topology.name(),
                        by_symmetry.method,
                        full.method
                    );
                    assert!(by_symmetry.finish.len() <= 8, "{} representatives", by_symmetry.finish.len());
                    assert!(matches!(
                        by_symmetry.method,
                        Method::ClocksBySymmetry | Method::EventsBySymmetry
                    ));
                }
            }
        }
    }
}

/// In a ring the renumbering moves chunks, too, so that a window of several steps keeps the symmetry.
#[test]
fn windows_of_a_ring_keep_its_symmetry() {
    for (window, segments) in [2, 7, 16].into_iter().flat_map(|window| [(window, 1), (window, 3)]) {
        for topology in ["switch", "nodes8", "nodes8x1"] {
            let schedule = Segments::new(all_reduce("ring", 64), segments);
            let geometry = Geometry::whole(&schedule, 64 * 1_013 * u64::from(segments));
            let topology = Topology::named(topology, 64).unwrap();
            let job = Job { costs: dear(), window, ..Job::new(&schedule, &geometry, 4, &topology) };
            let (full, auto) = (simulate(&job, Engine::Full).unwrap(), simulate(&job, Engine::Auto).unwrap());
            assert_eq!(
                (auto.time, auto.messages),
                (full.time, full.messages),
                "{window} {}",
                topology.name()
            );
            assert!(auto.finish.len() <= 8, "{} representatives by {:?}", auto.finish.len(), auto.method);
        }
    }
}

#[test]
fn a_hundred_thousand_ranks_take_one_representative_per_class() {
    let schedule = all_reduce("ring", 131_072);
    let geometry = Geometry::whole(&*schedule, 1 << 28);
    let topology = Topology::named("nodes8", 131_072).unwrap();
    let by_symmetry = simulate(&Job::new(&*schedule, &geometry, 4, &topology), Engine::Auto).unwrap();
    assert_eq!((by_symmetry.method, by_symmetry.finish.len()), (Method::ClocksBySymmetry, 8));
    assert_eq!(by_symmetry.messages, 2 * 131_071 * 131_072);
}

fn refusal(job: &Job<'_>) -> String {
    match simulate(job, Engine::BySymmetry) {
        Err(error @ Error::NoSymmetry { .. }) => error.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn broken_symmetry_is_refused_with_a_remedy() {
    let ring = all_reduce("ring", 16);
    let topology = Topology::named("nodes8", 16).unwrap();
    let (even, odd) = (Geometry::whole(&*ring, 1_600), Geometry::whole(&*ring, 1_601));
    let job = Job::new(&*ring, &even, 4, &topology);
    assert!(simulate(&job, Engine::BySymmetry).is_ok());

    let unequal = Job { geometry: &odd, ..job };
    let said = refusal(&unequal);
    assert!(said.contains("1601 elements make 16 chunks of unequal size"), "{said}");
    assert!(said.contains("a count that divides evenly"), "{said}");
    assert_eq!(simulate(&unequal, Engine::Auto).unwrap().method, Method::Clocks);

    let rounded = simulate(&unequal, Engine::BySymmetryRounded).unwrap();
    assert_eq!(rounded.rounded, Some(1_616));
    let larger = Geometry::whole(&*ring, 1_616);
    assert_eq!(rounded.time, simulate(&Job { geometry: &larger, ..job }, Engine::Full).unwrap().time);
    assert!(rounded.time >= simulate(&unequal, Engine::Full).unwrap().time);

    let halving = all_reduce("halving_doubling", 16);
    let geometry = Geometry::whole(&*halving, 1_600);
    let job = Job { window: 2, ..Job::new(&*halving, &geometry, 4, &topology) };
    assert!(refusal(&job).contains("a window of 1"));

    let chain = all_reduce("chain", 16);
    assert!(
        refusal(&Job { schedule: &*chain, geometry: &Geometry::whole(&*chain, 1_600), ..job })
            .contains("step every rank")
    );

    let partly = Topology::named("nodes8", 20).unwrap();
    let ring = all_reduce("ring", 20);
    let geometry = Geometry::whole(&*ring, 2_000);
    let said = refusal(&Job::new(&*ring, &geometry, 4, &partly));
    assert!(said.contains("a number of ranks that fills every node"), "{said}");
}

#[test]
fn a_slow_rank_or_link_costs_time_and_breaks_the_symmetry() {
    let ring = all_reduce("ring", 16);
    let geometry = Geometry::whole(&*ring, 1 << 20);
    let topology = Topology::named("nodes8", 16).unwrap();
    let job = Job { costs: dear(), ..Job::new(&*ring, &geometry, 4, &topology) };
    let healthy = simulate(&job, Engine::Full).unwrap();
    for rule in ["slow_rank=7:x4", "slow_link=nic_out[7]:x10", "slow_link=up[5]:+20us"] {
        let faults = Faults::parse([rule], &topology).unwrap();
        let slow = Job { faults: &faults, ..job };
        assert!(refusal(&slow).contains("a fault rule"), "{rule}");
        let outcome = simulate(&slow, Engine::Auto).unwrap();
        assert!(outcome.time > healthy.time, "{rule}: {} after {}", outcome.time, healthy.time);
        assert_eq!(outcome.finish, simulate(&slow, Engine::Events).unwrap().finish, "{rule}");
    }
}

#[test]
fn jobs_that_do_not_fit_together_are_refused_in_one_line() {
    let ring = all_reduce("ring", 4);
    let geometry = Geometry::whole(&*ring, 64);
    let (three, four) = (Topology::named("switch", 3).unwrap(), Topology::named("switch", 4).unwrap());
    let error = |job: Job<'_>| simulate(&job, Engine::Auto).unwrap_err().to_string();
    assert!(error(Job::new(&*ring, &geometry, 4, &three)).contains("for 4 ranks and the topology joins 3"));
    assert!(error(Job { window: 0, ..Job::new(&*ring, &geometry, 4, &four) }).contains("1 or more"));
    let huge = Geometry::whole(&*ring, u64::MAX / 2);
    assert!(error(Job::new(&*ring, &huge, 4, &four)).contains("is more than the simulator can hold"));
    let slow = Topology::switch(4, Link { bandwidth: BytesPerSec(1), latency: Picos(1) }).unwrap();
    let large = Geometry::whole(&*ring, 1 << 40);
    assert!(error(Job::new(&*ring, &large, 1, &slow)).contains("is more than the simulator can hold"));
}

/// The simulated time of a double tree in segments. The ideal is 2 depth alpha + 2 S beta: a rank's port carries every byte in and
/// out twice.
fn double_tree(ranks: u32, window: u32, segments: u32, sharing: Sharing) -> Picos {
    let row = registry::find(Collective::AllReduce, "double_binary_tree").unwrap();
    let schedule = schedule(row, ranks, 0, segments);
    let geometry = Geometry::whole(&*schedule, 1 << 30);
    let topology = Topology::named("switch", ranks).unwrap();
    let job = Job {
        window,
        sharing: sharing.into(),
        costs: Costs::FREE,
        ..Job::new(&*schedule, &geometry, 4, &topology)
    };
    simulate(&job, Engine::Full).unwrap().time
}

#[test]
fn a_double_tree_comes_near_its_ideal_in_a_window_of_128() {
    let (ranks, depth) = (255, 8);
    let ideal = depth * 2 * 1_200_000 + 2 * (4u64 << 30) * 1_000 / 300;
    let time = double_tree(ranks, 128, 256, Sharing::Split).0;
    assert!(time >= ideal && time < ideal * 105 / 100, "{time} ps, ideal {ideal} ps");
    // If the window holds fewer segments than the tree has levels, the tree runs out of steps and is slower.
    assert!(double_tree(ranks, 8, 256, Sharing::Split).0 > ideal * 120 / 100);
}

#[test]
fn splitting_links_evenly_is_within_a_percent_of_max_min() {
    let [split, max_min] =
        [Sharing::Split, Sharing::MaxMin].map(|sharing| double_tree(255, 128, 16, sharing).0);
    assert!(split.abs_diff(max_min) * 100 <= max_min, "{split} and {max_min} ps");
}
