//! Pipelines on two threads, compared with the clock, which uses for each step the times of passes that were measured in that step. The
//! remaining difference is messages, and waiting that is not part of the schedule.
//!
//! `cargo bench -p allfold-prediction --bench pipeline`
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_collectives::{Communicator, Plan, World};
use allfold_prediction::{MeasuredPart, ModeledMachine, predict_measured};
use allfold_sim::{Device, Picos, Topology};
use allfold_trainer::timing::{LayerSpan, StepBreakdown, StepWork, work_of};
use allfold_trainer::{Config, Error, Observer, Phase, StepReport, data, layer_of, train};
use std::collections::BTreeMap;

/// A pass of a layer, or the loss.
type Pass = (Option<usize>, &'static str);

fn pass(layer: Option<usize>, work: StepWork) -> Pass {
    (layer, work.name())
}

/// How long each pass over a micro-batch took, and the parts of a step that belong to no pass.
#[derive(Clone, Debug, Default)]
struct PhaseTimes {
    passes: BTreeMap<Pass, Picos>,
    /// The time to prepare the batch of a step.
    data: Picos,
    /// The time of the optimiser's step, over this many elements.
    update: (Picos, usize),
}

impl PhaseTimes {
    /// The mean time of each pass in `spans`, which are those of micro-batches of one size on the ranks that have the layer.
    fn of<'s>(spans: impl IntoIterator<Item = &'s LayerSpan>) -> PhaseTimes {
        let mut times: BTreeMap<Pass, (Picos, u64)> = BTreeMap::new();
        for span in spans {
            let (time, count) = times.entry(pass(span.layer, span.work)).or_default();
            (*time, *count) = (*time + (span.end - span.start), *count + 1);
        }
        let mean = |(pass, (time, count)): (Pass, (Picos, u64))| (pass, Picos(time.0 / count));
        PhaseTimes { passes: times.into_iter().map(mean).collect(), ..PhaseTimes::default() }
    }

    /// The time of a part of a step; of a pass that was not measured, none.
    fn takes(&self, part: MeasuredPart) -> Picos {
        match part {
            MeasuredPart::Data => self.data,
            MeasuredPart::Update(elements) => {
                let (time, over) = self.update;
                Picos((u128::from(time.0) * elements as u128 / over.max(1) as u128) as u64)
            }
            MeasuredPart::Phase(Phase::SyncForward(_) | Phase::SyncBackward(_)) => Picos::ZERO,
            MeasuredPart::Phase(phase) => {
                self.passes.get(&pass(layer_of(phase), work_of(phase))).copied().unwrap_or_default()
            }
        }
    }
}

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
            let clock = predict_measured(&config, train.form(), &machine, &|part| times.takes(part)).unwrap();
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
