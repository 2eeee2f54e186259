//! Tests of every machine preset: collectives take no less time than their bounds, and symmetry classes are exact.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_schedules::registry::{self, Shape};
use allfold_schedules::{Collective, Geometry};
use allfold_sim::machines::presets::Preset;
use allfold_sim::{BytesPerSec, Costs, Picos, Sharing, Topology};
use allfold_timing::{Engine, Error, Job, simulate};
use proptest::prelude::*;

/// Costs that are all greater than zero.
fn dear() -> Costs {
    Costs {
        overhead: Picos(77_001),
        launch: Picos(1_000_003),
        memory: Some(BytesPerSec(1_555_000_000_000)),
        ..Costs::FREE
    }
}

#[test]
fn every_machine_runs_an_all_reduce_above_its_bounds() {
    for preset in Preset::all().unwrap() {
        for (text, nodes) in [("", 1), ("", 4), (",fat-tree=4:1,pod=2", 4)] {
            let (name, ranks) = (format!("{}{text}", preset.name), nodes * preset.devices);
            let topology = Topology::named(&name, ranks).unwrap();
            for algorithm in ["ring", "hierarchical", "double_binary_tree"] {
                let row = registry::find(Collective::AllReduce, algorithm).unwrap();
                let schedule = row.build(Shape::new(ranks).unwrap()).unwrap();
                let geometry = Geometry::whole(&*schedule, u64::from(ranks) << 12);
                let job = Job {
                    costs: dear(),
                    collective: Some(Collective::AllReduce),
                    ..Job::new(&*schedule, &geometry, 4, &topology)
                };
                let outcome = simulate(&job, Engine::Auto).unwrap();
                let bounds = outcome.bounds;
                // A beaten bound is an error already; in addition, the bound of the ports must not be trivial.
                assert!(outcome.time >= bounds.greatest().0, "{name} {algorithm}");
                assert!(bounds.collective > Picos::ZERO, "{name}");
            }
        }
    }
}

/// The number of cases for a property test: `PROPTEST_CASES` if it is set, otherwise `usual`.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(500)))]

    /// On any machine, with or without a spine, one rank per symmetry class takes as long as all ranks, to the picosecond.
    #[test]
    fn folding_a_machine_is_exact(
        machine in prop::sample::select(Preset::names()),
        algorithm in prop::sample::select(vec!["ring", "halving_doubling", "recursive_doubling", "direct"]),
        nodes in 1u32..9,
        few in prop::bool::weighted(0.2),
        text in prop::sample::select(vec![
            "", ",fat-tree=2:1,pod=2", ",fat-tree=2:1,pod=4,rails=off", ",fat-tree=3:1,pod=1", ",nics=2", ",devices=4",
        ]),
        max_min in any::<bool>(),
    ) {
        let preset = Preset::named(machine).unwrap();
        prop_assume!(preset.devices <= 16);
        let devices = if text == ",devices=4" { 4 } else { preset.devices };
        let ranks = if few { nodes } else { nodes * devices };
        let topology = Topology::named(&format!("{machine}{text}"), ranks).unwrap();
        let row = registry::find(Collective::AllReduce, algorithm).unwrap();
        let schedule = row.build(Shape::new(ranks).unwrap()).unwrap();
        let geometry = Geometry::whole(&*schedule, u64::from(ranks) * 1_013).rounded_up(&*schedule);
        let sharing = if max_min { Sharing::MaxMin } else { Sharing::Split }.into();
        let job = Job {
            costs: dear(),
            sharing,
            collective: Some(Collective::AllReduce),
            ..Job::new(&*schedule, &geometry, 4, &topology)
        };
        let full = simulate(&job, Engine::Full).unwrap();
        match simulate(&job, Engine::BySymmetry) {
            Ok(by_symmetry) => prop_assert_eq!(
                (by_symmetry.time, by_symmetry.messages, by_symmetry.bytes, by_symmetry.bounds),
                (full.time, full.messages, full.bytes, full.bounds)
            ),
            Err(error) => prop_assert!(matches!(error, Error::NoSymmetry { .. }), "{}", error),
        }
    }
}

/// For 131,072 ranks, with and without a fat tree, few representatives are stepped, so that the simulation ends at once.
#[test]
fn a_hundred_thousand_ranks_on_a_fat_tree_are_folded() {
    for (text, most) in [("hgx-h100", 8), ("hgx-h100,fat-tree=2:1,pod=32", 256), ("dgx1-v100", 8)] {
        let topology = Topology::named(text, 131_072).unwrap();
        let row = registry::find(Collective::AllReduce, "halving_doubling").unwrap();
        let schedule = row.build(Shape::new(131_072).unwrap()).unwrap();
        let geometry = Geometry::whole(&*schedule, 1 << 28);
        let outcome = simulate(&Job::new(&*schedule, &geometry, 4, &topology), Engine::BySymmetry).unwrap();
        assert!(outcome.finish.len() <= most, "{text}: {} representatives", outcome.finish.len());
    }
}
