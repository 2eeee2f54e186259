//! Pipelines on two threads, compared with the clock, which uses for each step the times of passes that were measured in that step. The
//! remaining difference is messages, and waiting that is not part of the schedule.
//!
//! `cargo bench -p allfold-prediction --bench pipeline`
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_collectives::{Communicator, Plan, World};
use allfold_prediction::{ModeledMachine, PhaseTimes, predict_measured};
use allfold_sim::{Device, Picos, Topology};
use allfold_trainer::timing::{LayerSpan, StepBreakdown};
use allfold_trainer::{Config, Error, Observer, StepReport, data, train};

const STAGES: u32 = 2;
/// Steps that warm up, and those that count.
const STEPS: (u64, u64) = (3, 21);

/// What a rank measured in the steps that count: their times, and the passes of layers in each.
#[derive(Default)]
struct Measured(Vec<(StepBreakdown, Vec<LayerSpan>)>);

impl Observer for Measured {
    fn wants_layers(&self, step: u64) -> bool {
        step >= STEPS.0
    }

    fn step(&mut self, report: &StepReport) {
        if report.step >= STEPS.0 {
            self.0.push((report.time, report.layers.to_vec()));
        }
    }
}

fn median(mut times: Vec<Picos>) -> Picos {
    times.sort_unstable();
    times[times.len() / 2]
}

fn config(schedule: &str) -> Config {
    let mut config = Config::default();
    let keys = [
        ("strategy", "pipeline"),
        ("parallel.schedule", schedule),
        ("model.name", "gpt"),
        ("model.layers", "8"),
        ("model.width", "128"),
        ("model.heads", "4"),
        ("data.name", "synthetic"),
        ("data.positions", "64"),
        ("data.synthetic_classes", "64"),
        ("training.batch", "32"),
        ("training.accumulate", "8"),
    ];
    keys.iter().for_each(|(key, value)| config.set(key, value).unwrap());
    config.with(|c| {
        c.training.max_steps = STEPS.0 + STEPS.1;
        c.data.synthetic_samples = 32 * c.training.max_steps as usize;
    })
}

fn main() {
    println!("| schedule    | measured step | on the clock | measured / clock |");
    println!("|-------------|---------------|--------------|------------------|");
    for schedule in ["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"] {
        let config = config(schedule);
        let body = |comm: Communicator| {
            let mut measured = Measured::default();
            let result = train(&config, &comm, &mut measured)?;
            Ok::<_, Error>((measured, result.parameters))
        };
        let ranks = World::threads(STAGES).run(body).unwrap();
        let (topology, plan) = (Topology::named("switch", STAGES).unwrap(), Plan::default());
        let machine = ModeledMachine::new(&topology, Device::CPU_CORE, &plan);
        let (train, _) = data::load(&config).unwrap();
        let both = (0..STEPS.1 as usize).map(|step| {
            let all = || ranks.iter().map(|(Measured(steps), _)| &steps[step]);
            let mut times = PhaseTimes::of(all().flat_map(|(_, layers)| layers));
            let update = all().map(|(time, _)| time.optimiser).fold(Picos::ZERO, |sum, time| sum + time);
            (times.data, times.update) = (all().next().unwrap().0.data, (update, ranks[0].1));
            let clock = predict_measured(&config, train.form(), &machine, &times).unwrap();
            (all().map(|(time, _)| time.total()).max().unwrap(), clock.time.total())
        });
        let (measured, clock): (Vec<Picos>, Vec<Picos>) = both.unzip();
        let (measured, clock) = (median(measured), median(clock));
        println!(
            "| {schedule:<11} | {:>10.0} us | {:>9.0} us | {:>16.3} |",
            measured.as_micros(),
            clock.as_micros(),
            measured.as_secs() / clock.as_secs()
        );
    }
}
