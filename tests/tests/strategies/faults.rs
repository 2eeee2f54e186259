//! Ranks that die or are slow in the middle of a step, on virtual time.

use crate::{ROWS, gpt, on};
use allfold_collectives::{Error, World};
use allfold_sim::{Faults, Topology};
use allfold_trainer::{Config, TrainResult, train};

/// Runs `config` over four ranks with a fault.
fn with(config: &Config, rule: &str) -> allfold_collectives::Report<TrainResult, allfold_trainer::Error> {
    let topology: Topology = allfold_tests::training::switch(4);
    let faults = Faults::parse([rule], &topology).unwrap();
    let world = World::sim(&topology).faults(faults);
    world.run_each(|comm| train(config, &comm, &mut ())).unwrap()
}

/// Every survivor ends with an error that names the dead rank, and the same run ends in the same way again.
#[test]
fn every_survivor_of_a_death_in_mid_step_names_the_dead() {
    for row in &ROWS {
        let config = on(row, &Config { max_steps: 6, ..gpt() }, (row.data)(4).unwrap());
        let end = |rule| {
            let report = with(&config, rule);
            let told = report.ranks.into_iter().map(|rank| rank.map(|_| ()).unwrap_err().to_string());
            (told.collect::<Vec<_>>(), report.event_hash)
        };
        // In the first steps, and later.
        for rule in ["dead_rank=2@60us", "dead_rank=2@700us"] {
            let (told, hash) = end(rule);
            for (rank, said) in told.iter().enumerate().filter(|(rank, _)| *rank != 2) {
                assert!(said.contains("rank 2"), "{}, {rule}, rank {rank}: {said}", row.name);
            }
            assert_eq!(end(rule), (told, hash), "{}, {rule}", row.name);
        }
    }
}

/// A slow rank delays the others, and changes nothing that they compute.
#[test]
fn a_slow_rank_changes_times_and_no_bits() {
    for row in &ROWS {
        let config = on(row, &Config { max_steps: 3, ..gpt() }, (row.data)(4).unwrap());
        let end = |rule| {
            let report = with(&config, rule);
            let slowest = report.finish.iter().max().copied().unwrap();
            (report.ranks.into_iter().next().unwrap().unwrap().weights_hash, slowest)
        };
        let (plain, slow) = (end("slow_rank=1:x1"), end("slow_rank=1:x6"));
        assert!(plain.0 == slow.0 && slow.1 > plain.1, "{}: {plain:?} {slow:?}", row.name);
    }
}

/// A rank whose code fails in mid-step is the cause that the others give.
#[test]
fn a_rank_that_returns_early_is_named_in_real_time() {
    for row in &ROWS {
        let config = on(row, &Config { max_steps: 6, ..gpt() }, (row.data)(2).unwrap());
        let report = World::threads(2).run_each(|comm| match comm.rank().0 {
            0 => train(&config, &comm, &mut ()).map(|_| ()),
            // Another configuration: this rank ends after one step.
            _ => train(&Config { max_steps: 1, ..config.clone() }, &comm, &mut ()).map(|_| ()),
        });
        let ranks = report.unwrap().ranks;
        let said = ranks.into_iter().find_map(Result::err).unwrap();
        let collective = matches!(said, allfold_trainer::Error::Collective(ref error) if !matches!(error, Error::DeadlineExceeded { .. }));
        assert!(collective, "{}: {said}", row.name);
    }
}
