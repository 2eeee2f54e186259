//! Ranks that die or are slow in the middle of a step, on virtual time.

use crate::{ROWS, on};
use allfold_collectives::World;
use allfold_sim::{Faults, Topology};
use allfold_trainer::{Config, Observer, StepReport, TrainResult, train};

/// Runs `config` over four ranks with a fault.
fn with(config: &Config, rule: &str) -> allfold_collectives::Report<TrainResult, allfold_trainer::Error> {
    let topology: Topology = allfold_tests::training::switch(4);
    let faults = Faults::parse([rule], &topology).unwrap();
    let world = World::sim(&topology).faults(faults);
    world.run_each(|comm| train(config, &comm, &mut ())).unwrap()
}

/// Every survivor ends with an error that names the dead rank, by its number among all ranks, and the same run ends in the same way
/// again.
#[test]
fn every_survivor_of_a_death_in_mid_step_names_the_dead() {
    for row in &ROWS {
        let config = on(row, &row.gpt().with(|c| c.training.max_steps = 6), (row.data)(4).unwrap());
        let end = |rule| {
            let report = with(&config, rule);
            let told = report.ranks.into_iter().map(|rank| rank.map(|_| ()).unwrap_err().to_string());
            (told.collect::<Vec<_>>(), report.event_hash)
        };
        // The rank dies in the first steps, or later.
        for rule in ["dead_rank=2@60us", "dead_rank=2@700us"] {
            let (told, hash) = end(rule);
            for (rank, said) in told.iter().enumerate().filter(|(rank, _)| *rank != 2) {
                let named = said.contains("rank 2 is lost") || said.contains("(rank 2 of the world) is lost");
                assert!(named && said.contains("died at"), "{}, {rule}, rank {rank}: {said}", row.name);
            }
            assert_eq!(end(rule), (told, hash), "{}, {rule}", row.name);
        }
    }
}

/// A slow rank delays the others, and changes nothing that they compute.
#[test]
fn a_slow_rank_changes_times_and_no_bits() {
    for row in &ROWS {
        let config = on(row, &row.gpt().with(|c| c.training.max_steps = 3), (row.data)(4).unwrap());
        let end = |rule| {
            let report = with(&config, rule);
            let slowest = report.finish.iter().max().copied().unwrap();
            (report.ranks.into_iter().next().unwrap().unwrap().weights_hash, slowest)
        };
        let (plain, slow) = (end("slow_rank=1:x1"), end("slow_rank=1:x6"));
        assert!(plain.0 == slow.0 && slow.1 > plain.1, "{}: {plain:?} {slow:?}", row.name);
    }
}

/// Fails after the second step.
struct Fails;

impl Observer for Fails {
    fn step(&mut self, report: &StepReport) {
        assert!(report.step < 1, "fails as planned");
    }
}

/// A rank whose code fails between two steps is named by the others, whatever they wait for.
#[test]
fn a_rank_that_panics_is_named_in_real_time() {
    for row in &ROWS {
        let Some(data) = (row.data)(2) else { continue };
        let config = on(row, &row.gpt().with(|c| c.training.max_steps = 6), data);
        let report = World::threads(2).run_each(|comm| match comm.rank().0 {
            0 => train(&config, &comm, &mut ()).map(|_| ()),
            _ => train(&config, &comm, &mut Fails).map(|_| ()),
        });
        let said = report.unwrap().ranks.swap_remove(0).unwrap_err().to_string();
        assert!(said.contains("rank 1") && said.contains("fails as planned"), "{}: {said}", row.name);
    }
}
