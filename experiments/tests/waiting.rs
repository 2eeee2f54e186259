//! For whom ranks wait: in every step of a run, in the records of its steps, and on average.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod common;

use allfold_experiments::training::launch_mode::{LaunchMode, SimulatedRanks};
use allfold_experiments::training::run::{self, RecordOptions};
use allfold_experiments::training::trained::Trained;
use allfold_report::records::WaitingFor;
use allfold_sim::{Device, Faults, Topology};
use allfold_trainer::Config;
use common::{folder, records, said};
use serde_json::Value;

const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/digits-mlp.toml");

/// The steps of each run.
const STEPS: u64 = 4;

/// Three ranks on virtual time, one of which computes more slowly.
fn trained(strategy: &str, slow: u32) -> Trained {
    let config = Config::default().with(|c| {
        c.strategy = strategy.into();
        c.training.batch = 8;
        c.training.max_steps = STEPS;
        c.training.accumulate = if strategy == "pipeline" { 4 } else { 1 };
        c.data.train_samples = 96;
    });
    let topology = Topology::named("switch", 3).unwrap();
    let faults = Faults::parse([&*format!("device={slow}:cpu_core")], &topology).unwrap();
    let devices = Device::default().into();
    let place = LaunchMode::Sim(Box::new(SimulatedRanks { topology, devices, faults }));
    let noted = RecordOptions { waiting: true, ..RecordOptions::default() };
    let data = run::load(&config).unwrap();
    run::run_on(&config, &data, &place, &indicatif::ProgressBar::hidden(), noted).unwrap()
}

#[test]
fn a_slow_rank_is_who_the_others_wait_for_in_every_step() {
    for strategy in ["ddp", "zero3", "pipeline"] {
        for slow in [0, 2] {
            let trained = trained(strategy, slow);
            for step in 0..STEPS {
                let found = trained.waiting.of(step).unwrap();
                // In a pipeline a stage waits for its neighbour, which may wait for the slow one.
                let counts = |pair: &&WaitingFor| strategy != "pipeline" || pair.rank == 1;
                let of = |of: u32| {
                    found.iter().filter(counts).filter(|pair| pair.of == of).map(|pair| pair.us).sum::<f64>()
                };
                let others = (0..3).filter(|rank| *rank != slow).map(of).sum::<f64>();
                assert!(of(slow) > 3.0 * others, "{strategy}, rank {slow}, step {step}: {found:?}");
                // No rank waits for other ranks for longer than it waits in all.
                for (rank, steps) in (0..).zip(&trained.steps) {
                    let exposed = steps[step as usize].time.exposed.as_micros();
                    let own: f64 = found.iter().filter(|pair| pair.rank == rank).map(|pair| pair.us).sum();
                    assert!(own <= exposed + 1e-3, "{strategy}: rank {rank} waits {exposed}, {found:?}");
                }
            }
        }
    }
}

/// From the second step on all steps begin alike, so each is the mean.
#[test]
fn on_virtual_time_ranks_wait_for_a_slow_one_equally_long_in_each_step() {
    for strategy in ["ddp", "zero3"] {
        let trained = trained(strategy, 2);
        let mean = trained.mean_waiting_for();
        for rank in [0, 1] {
            let of_slow = |found: &[WaitingFor]| {
                let pair = found.iter().find(|pair| (pair.rank, pair.of) == (rank, 2));
                pair.map(|pair| pair.us).unwrap()
            };
            let expected = of_slow(&mean);
            for step in 1..STEPS {
                let us = of_slow(trained.waiting.of(step).unwrap());
                assert!((us - expected).abs() < 1e-3, "{strategy}, step {step}: {us} us, mean {expected} us");
            }
        }
    }
}

/// The records of the steps of a run.
fn steps(more: &[&str]) -> Vec<Value> {
    let train = ["train", "--config", MLP, "--set", "training.batch=8", "--steps", "4"];
    let all = records(&[&train[..], more].concat());
    let steps: Vec<Value> = all.into_iter().filter(|record| record["kind"] == "train").collect();
    assert_eq!(steps.len() as u64, STEPS);
    steps
}

/// The pairs of a step's record: who waits, for whom, and how long.
fn pairs(step: &Value) -> Vec<(u64, u64, f64)> {
    let pair = |pair: &Value| {
        (pair["rank"].as_u64().unwrap(), pair["of"].as_u64().unwrap(), pair["us"].as_f64().unwrap())
    };
    step["waiting_for"].as_array().unwrap().iter().map(pair).collect()
}

#[test]
fn the_record_of_each_step_names_the_rank_that_a_fault_slows_down() {
    let steps =
        steps(&["--ranks", "4", "--backend", "sim", "--topology", "switch", "--fault", "slow_rank=2:x4"]);
    let times: Vec<f64> = steps
        .iter()
        .map(|step| {
            let found = pairs(step);
            let of = |of: u64| found.iter().filter(|pair| pair.1 == of).map(|pair| pair.2).sum::<f64>();
            assert!([0, 1, 3].into_iter().all(|other| of(2) > of(other)), "{step}");
            of(2)
        })
        .collect();
    for time in &times[1..] {
        assert!((time - times[1]).abs() < 1e-2, "not the same time in each step: {times:?}");
    }
}

#[test]
fn on_threads_the_record_of_each_step_says_for_whom_ranks_wait() {
    for step in steps(&["--ranks", "2"]) {
        for (rank, of, us) in pairs(&step) {
            assert!(rank < 2 && of == 1 - rank && us > 0.0, "{step}");
        }
    }
    for step in steps(&["--ranks", "1"]) {
        assert!(step["waiting_for"].is_null(), "one rank waits for nobody: {step}");
    }
}

#[test]
fn the_page_of_a_hang_draws_who_waits_and_who_left_no_dump() {
    let folder = folder();
    let [cases, page] = ["cases", "hang.html"].map(|name| folder.path().join(name).display().to_string());
    said(&["hangs", "--cases", "4", "--keep", &cases]);
    said(&["triage", &format!("{cases}/case-3"), "--html", &page]);
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["id=\"triage\"", "rank 3: no dump", "rank 0 +2, default_pg: failed operation 66"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn cases_that_were_kept_are_judged_as_those_that_were_drawn() {
    let folder = folder();
    let cases = folder.path().join("cases").display().to_string();
    let table = |text: String| text.lines().skip(1).map(String::from).collect::<Vec<_>>();
    let drawn = table(said(&["hangs", "--cases", "20", "--keep", &cases]));
    assert!(drawn.len() > 20, "{drawn:?}");
    assert_eq!(drawn, table(said(&["hangs", "--from", &cases])));
}
