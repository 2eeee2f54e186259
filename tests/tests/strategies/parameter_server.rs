//! Workers that do not wait for each other: how many steps ahead a worker may be, and what is the same in every run.

use crate::digits;
use allfold_collectives::{Communicator, World};
use allfold_sim::{Device, Faults, Picos};
use allfold_tests::training::switch;
use allfold_trainer::timing::StepWork;
use allfold_trainer::{Config, Observer, StepReport, TrainResult, train};

/// When a worker begins to compute each step, and when it ends the step.
struct Steps<'a> {
    comm: &'a Communicator,
    begins: Vec<Picos>,
    ends: Vec<Picos>,
}

impl Observer for Steps<'_> {
    fn wants_spans(&self) -> bool {
        true
    }

    fn step(&mut self, report: &StepReport) {
        self.begins
            .extend(report.spans.iter().find(|span| span.work == StepWork::Forward).map(|span| span.start));
        self.ends.push(self.comm.now());
    }
}

fn config(staleness: u64) -> Config {
    let mut config = digits().with(|c| {
        c.strategy = "parameter_server".into();
        c.training.max_steps = 12;
        c.training.batch = 8;
    });
    config.parallel.staleness = staleness;
    config
}

/// Four ranks: a server and three workers, of which the last is four times as slow.
fn with_straggler(staleness: u64) -> Vec<(TrainResult, Vec<Picos>, Vec<Picos>)> {
    let topology = switch(4);
    let faults = Faults::parse(["slow_rank=3:x4"], &topology).unwrap();
    let world = World::sim(&topology).device(Device::named("a100_f32").unwrap()).faults(faults);
    let body = |comm: Communicator| {
        let mut steps = Steps { comm: &comm, begins: Vec::new(), ends: Vec::new() };
        let result = train(&config(staleness), &comm, &mut steps)?;
        Ok::<_, allfold_trainer::Error>((result, steps.begins, steps.ends))
    };
    world.run(body).unwrap()
}

/// With staleness s, a worker begins step k only after the slowest worker's gradient of step k - s - 1 has arrived; the first
/// steps wait for nobody.
#[test]
fn a_straggler_stops_the_others_at_the_bound_and_not_before() {
    for staleness in [1, 2, 4] {
        let ranks = with_straggler(staleness as u64);
        assert!(ranks[0].1.is_empty(), "the server computes no forward pass");
        let (fast, slow) = (&ranks[1].1, &ranks[3]);
        let mut waited_at = Vec::new();
        for (step, begin) in fast.iter().enumerate().skip(staleness + 1) {
            // The gradient arrives after the slow worker has computed it.
            let slowest = step - staleness - 1;
            assert!(*begin > slow.1[slowest], "staleness {staleness}, step {step}");
            if *begin > slow.2[slowest] {
                waited_at.push(step);
            }
        }
        let pace = fast[1].0 - fast[0].0;
        let free = (1..=staleness).all(|step| fast[step].0 - fast[step - 1].0 < 2 * pace);
        assert!(free, "staleness {staleness}: the first steps wait for nobody: {fast:?}");
        let ahead = (0..12).filter(|step| fast[*step] < slow.1[step.saturating_sub(staleness - 1)]).count();
        assert!(ahead > 0 && !waited_at.is_empty(), "staleness {staleness}: {waited_at:?}");
    }
}

#[test]
fn on_virtual_time_every_run_is_the_same() {
    let [first, again] = [(); 2].map(|()| with_straggler(2));
    let (losses, hash) = (&first[1].0.losses, first[1].0.weights_hash);
    assert_eq!((losses, hash), (&again[1].0.losses, again[1].0.weights_hash));
    assert!(first.iter().all(|rank| rank.0.weights_hash == hash));
    assert_ne!(hash, with_straggler(0)[1].0.weights_hash);
}

/// In real time the order of gradients differs from run to run; all are applied, and the loss falls.
#[test]
fn stale_gradients_train_too() {
    let hidden = vec![24];
    let config = config(3).with(|c| {
        c.model.hidden = hidden;
        c.optimiser.lr = 0.1;
        c.training.max_steps = 60;
        c.training.epochs = 20;
    });
    for ranks in [2, 4] {
        let results = World::threads(ranks).run(|comm| train(&config, &comm, &mut ())).unwrap();
        let losses = &results[0].losses;
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&losses[50..]) < 0.9 * mean(&losses[..10]), "{ranks} ranks: {losses:?}");
        assert!(results.iter().all(|rank| rank.weights_hash == results[0].weights_hash));
    }
}
