//! Every strategy on the clock, compared with the virtual time of a run with its arithmetic.

use crate::{ROWS, digits, gpt, llama, on};
use allfold_collectives::{Communicator, Plan, World};
use allfold_prediction::{ModeledMachine, StepPrediction, predict};
use allfold_sim::{BytesPerSec, Costs, Device, Faults, Link, Picos, Topology};
use allfold_tests::training::switch;
use allfold_trainer::config::{AutocastType, ElementType};
use allfold_trainer::timing::{StepSpan, StepWork};
use allfold_trainer::{Config, MemoryUse, Observer, StepReport, data, train};

/// The time of each of a rank's steps, and the most memory that the rank held in the last one.
#[derive(Default)]
struct Steps {
    times: Vec<Picos>,
    peak: MemoryUse,
}

impl Observer for Steps {
    fn wants_spans(&self) -> bool {
        true
    }

    fn step(&mut self, report: &StepReport) {
        self.times.push(report.time.total());
        self.peak = report.peak;
    }
}

/// One device for all ranks.
fn alike(device: Device) -> (Device, &'static Faults) {
    static ALIKE: Faults = Faults::NONE;
    (device, &ALIKE)
}

/// The last step of each rank on virtual time; `devices` gives some ranks other devices.
pub(crate) fn run(config: &Config, ranks: u32, devices: (Device, &Faults)) -> Vec<Picos> {
    let last = |steps: Steps| steps.times.last().copied().unwrap_or_default();
    steps(config, ranks, devices).into_iter().map(last).collect()
}

/// The steps of each rank on virtual time.
fn steps(config: &Config, ranks: u32, (device, devices): (Device, &Faults)) -> Vec<Steps> {
    let body = |comm: Communicator| {
        let mut steps = Steps::default();
        train(config, &comm, &mut steps)?;
        Ok::<_, allfold_trainer::Error>(steps)
    };
    World::sim(&switch(ranks))
        .device(device)
        .faults(devices.clone())
        .costs(Costs::default())
        .run(body)
        .unwrap()
}

pub(crate) fn predicted(config: &Config, ranks: u32, (device, devices): (Device, &Faults)) -> StepPrediction {
    let (train, _) = data::load(config).unwrap();
    let (topology, plan) = (switch(ranks), Plan::default());
    let costs = Costs::default();
    let machine = ModeledMachine { devices, costs, ..ModeledMachine::new(&topology, device, &plan) };
    predict(config, train.form(), &machine).unwrap()
}

/// Prints a row of the table; panics unless the clock has the time of the slowest rank, to the picosecond, and the most memory that a
/// rank holds, to the byte.
pub(crate) fn compare(row: &str, config: &Config, ranks: u32, device: Device) {
    let (done, clock) = (steps(config, ranks, alike(device)), predicted(config, ranks, alike(device)));
    let held: Vec<u64> = done.iter().map(|steps| steps.peak.total()).collect();
    let (most, peak) = (held.iter().copied().max().unwrap(), clock.peak().unwrap());
    // A rank may hold its most at several times, with other classes.
    let alike = done.iter().any(|steps| steps.peak.total() == most && steps.peak.optimiser == peak.optimiser);
    assert!(
        most == peak.total() && alike,
        "{row}, {}, {ranks} ranks: {held:?}, on the clock {peak:?}",
        config.model.name
    );
    let real: Vec<Picos> = done.iter().map(|steps| *steps.times.last().unwrap()).collect();
    let found = clock.time.total();
    let slowest = *real.iter().max().unwrap();
    let what = format!(
        "{row:<22} | {:<4} | {ranks:>2} | {:<9} | {slowest} | {found}",
        config.model.name, device.name
    );
    println!("| {what} |");
    assert_eq!(slowest, found, "{what}");
}

#[test]
fn the_clock_is_the_virtual_time_of_every_strategy() {
    for row in &ROWS {
        for base in [digits(), row.gpt()].into_iter().filter(|base| row.takes(base)) {
            let base = base.with(|c| {
                c.training.max_steps = 4;
                c.training.epochs = 4;
            });
            // The GPT has twelve parts that a pipeline can separate.
            let most =
                if ["interleaved", "zb_v"].contains(&row.name) && base.model.name == "gpt" { 4 } else { 8 };
            // Of three ranks, some end a collective before others.
            let counts = [2, 3, 4, 8].into_iter().filter(|ranks| base.model.name == "mlp" || *ranks != 3);
            for ranks in counts.filter(|ranks| *ranks <= most) {
                let Some(data) = (row.data)(ranks) else { continue };
                // On the slow device computation hides most communication; the fast one waits for the network.
                let devices = [Device::CPU_CORE, Device::default()];
                let device = devices[usize::from(base.model.name == "mlp" || ranks == 8)];
                compare(row.name, &on(row, &base, data), ranks, device);
            }
        }
    }
}

#[test]
fn the_clock_is_the_virtual_time_of_a_llama() {
    for (name, ranks) in [("ddp", 2), ("zero3", 4), ("zb_h1", 2), ("tensor", 4), ("1f1b x zero1 x tensor", 4)]
    {
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        let base = llama().with(|c| (c.training.max_steps, c.training.epochs) = (4, 4));
        compare(name, &on(row, &base, (row.data)(ranks).unwrap()), ranks, Device::CPU_CORE);
    }
}

/// Where several copies are sharded, gradients are summed over the copies during the backward pass: between this pass and the update a
/// rank waits for less time than these sums take alone.
#[test]
fn sums_over_sharded_copies_overlap_with_the_backward_pass() {
    let bandwidth = 1_000_000_000;
    let link = Link { bandwidth: BytesPerSec(bandwidth), latency: Picos::ZERO };
    let (topology, plan) = (Topology::switch(4, link).unwrap(), Plan::default());
    for strategy in ["zero1", "zero2", "zero3"] {
        let row = ROWS.iter().find(|row| row.name == strategy).unwrap();
        let config = on(row, &row.gpt(), 4).with(|c| c.parallel.shard = 2);
        let (train, _) = data::load(&config).unwrap();
        let machine = ModeledMachine::new(&topology, Device::CPU_CORE, &plan);
        let step = predict(&config, train.form(), &machine).unwrap();
        // Two ranks with the same half of the gradients send each other half of that, and then the sums.
        let bytes = step.buckets.iter().map(|unit| unit.bytes).sum::<u64>() / 2;
        let sums = Picos(bytes * (1_000_000_000_000 / bandwidth));
        let spans = &step.spans[0];
        let update = spans.iter().find(|span| span.work == StepWork::Update).unwrap().start;
        let computes = |span: &&StepSpan| span.end <= update && span.work != StepWork::Waiting;
        let waits = update - spans.iter().rfind(computes).unwrap().end;
        println!("{strategy}: waits {waits} before the update; the sums alone take {sums}");
        assert!(waits < sums, "{strategy}: {waits} of {sums}");
    }
}

/// Clipping, a loss scale, Adam and synchronised batch norms take the time that they take in a run.
#[test]
fn what_ranks_agree_on_takes_its_time_on_the_clock() {
    let more = |base: Config| {
        base.with(|c| {
            c.optimiser.name = "adam".into();
            c.optimiser.clip_norm = 0.5;
            c.precision.loss_scale = 1024.0;
            c.training.max_steps = 4;
            c.training.epochs = 4;
        })
    };
    for name in ["ddp", "zero1", "zero3", "1f1b", "tensor", "parameter_server"] {
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        let config = on(row, &more(row.gpt()), (row.data)(4).unwrap());
        compare(name, &config, 4, Device::default());
    }
    // Norms of parts are shared; two servers share them, too.
    for name in ["zero1", "tensor", "parameter_server", "2 servers, 2 micro"] {
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        let lars = more(row.gpt()).with(|c| c.optimiser.name = "lars".into());
        compare(name, &on(row, &lars, (row.data)(4).unwrap()), 4, Device::default());
    }
    // Autocast's layers compute on the units for narrow numbers.
    for name in ["ddp", "zero3", "1f1b", "tensor", "context"] {
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        let plain = more(row.gpt()).with(|c| {
            c.precision.dtype = ElementType::F32;
            c.model.width = 64;
        });
        let config =
            on(row, &plain.clone().with(|c| c.precision.amp = AutocastType::Bf16), (row.data)(4).unwrap());
        compare(name, &config, 4, Device::default());
        let slower = predicted(
            &config.clone().with(|c| c.precision.amp = AutocastType::None),
            4,
            alike(Device::default()),
        );
        let narrow = predicted(&config, 4, alike(Device::default()));
        assert!(narrow.time.total() < slower.time.total(), "{name}");
    }
    let channels = vec![4, 6];
    let norms = digits().with(|c| {
        c.model.name = "cnn".into();
        c.model.channels = channels;
        c.model.batch_norm = true;
        c.model.sync_batch_norm = true;
    });
    let config = more(norms).with(|c| {
        c.strategy = "ddp".into();
        c.training.batch = 4;
        c.model.hidden = Vec::new();
    });
    compare("ddp", &config, 4, Device::default());
    let served = config.with(|c| c.strategy = "parameter_server".into());
    compare("parameter_server", &served, 4, Device::default());
}

/// Workers that do not wait for each other: the clock averages ten steps, and so does this test. Which message comes first depends on
/// when ranks begin, so that the times are not quite the same.
#[test]
fn workers_ahead_of_each_other_have_their_time_on_the_clock() {
    for (staleness, servers) in [(1, 1), (2, 2)] {
        let config = digits().with(|c| {
            c.strategy = "parameter_server".into();
            (c.parallel.staleness, c.parallel.servers) = (staleness, servers);
            c.training.max_steps = staleness + 11;
            c.training.batch = 4;
        });
        for device in [Device::CPU_CORE, Device::default()] {
            let mean = |steps: Steps| {
                steps.times[staleness as usize + 1..].iter().map(|time| time.0).sum::<u64>() / 10
            };
            let real = steps(&config, 6, alike(device)).into_iter().map(mean).max().unwrap();
            let found = predicted(&config, 6, alike(device)).time.total().0;
            println!(
                "staleness {staleness}, {servers} servers, {}: {real} ps, on the clock {found} ps",
                device.name
            );
            assert!(found.abs_diff(real) < real / 33, "staleness {staleness}: {real} {found}");
        }
    }
}

/// Steps between two averages of the weights exchange nothing: the clock's time is the mean over all of them.
#[test]
fn local_steps_and_their_average_take_their_time_on_the_clock() {
    for local_steps in [1u64, 3] {
        let config = digits().with(|c| {
            c.strategy = "ddp".into();
            c.ddp.hook = "local_sgd".into();
            c.ddp.local_steps = local_steps;
            c.training.max_steps = 3 * local_steps;
            c.training.batch = 4;
        });
        for device in [Device::CPU_CORE, Device::default()] {
            let mean = |steps: Steps| {
                let last = &steps.times[2 * local_steps as usize..];
                last.iter().map(|time| time.0).sum::<u64>() / local_steps
            };
            let real = steps(&config, 4, alike(device)).into_iter().map(mean).max().unwrap();
            let found = predicted(&config, 4, alike(device)).time.total().0;
            println!("{local_steps} local steps, {}: {real} ps, on the clock {found} ps", device.name);
            // The clock rounds the mean of each of the five parts of a step.
            assert!(found <= real && found + 5 >= real, "{local_steps} local steps: {real} {found}");
        }
    }
}

/// A GPT in three dimensions: every rank stepped, compared with one rank of each stage.
#[test]
fn a_rank_of_each_stage_stands_for_sixty_four() {
    let mut config = gpt().with(|c| {
        c.strategy = "pipeline".into();
        c.training.batch = 8;
        c.training.accumulate = 4;
        c.data.train_samples = 0;
        c.data.synthetic_samples = 600;
        c.training.max_steps = 4;
        c.training.epochs = 4;
        c.data.synthetic_classes = 16;
    });
    let keys = [("parallel.tensor", "4"), ("parallel.stages", "4"), ("parallel.sharding", "zero1")];
    for (key, value) in keys {
        config.set(key, value).unwrap();
    }
    for device in [Device::CPU_CORE, Device::default()] {
        compare("1f1b", &config, 64, device);
    }
}
