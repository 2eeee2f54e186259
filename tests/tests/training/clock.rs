//! Training on the virtual clock, compared with its prediction.

use allfold_collectives::{Plan, World};
use allfold_prediction::{ModeledMachine, StepPrediction, predict};
use allfold_sim::{Costs, Device, Topology};
use allfold_tests::training::switch;
use allfold_trainer::timing::{StepBreakdown, communication};
use allfold_trainer::{Config, Error, Observer, SampleForm, StepReport, TrainResult, data, train_on};

/// The last step's time, which is steady: in the first step ranks start at different times, when their broadcast of weights ended.
#[derive(Default)]
struct LastStep(StepBreakdown);

impl Observer for LastStep {
    fn step(&mut self, report: &StepReport) {
        self.0 = report.time;
    }
}

/// Three steps of the CNN of the digits on the virtual clock: each rank's last step and its buckets, and the
/// prediction.
fn timed(ranks: u32, device: Device, config: &Config) -> (Vec<(StepBreakdown, TrainResult)>, StepPrediction) {
    let (topology, costs) = (switch(ranks), Costs::default());
    let config = config.clone().with(|c| c.training.max_steps = 3);
    let (train, test) = data::digits().unwrap();
    let (train, test) = (train.first(3 * config.training.batch * ranks as usize), test.first(10));
    let real = World::sim(&topology).device(device).costs(costs).run(|comm| {
        let mut last = LastStep::default();
        let result = train_on(&config, &train, &test, &comm, &mut last)?;
        Ok::<_, Error>((last.0, result))
    });
    let plan = Plan::default();
    let machine = ModeledMachine { costs, ..ModeledMachine::new(&topology, device, &plan) };
    (real.unwrap(), predict(&config, train.form(), &machine).unwrap())
}

#[test]
fn communication_overlaps_with_backward_on_the_virtual_clock() {
    let many = Config::default().with(|c| {
        c.ddp.first_bucket_kib = 1;
        c.ddp.bucket_kib = 32;
        c.training.batch = 8;
    });
    for (step, result) in timed(4, Device::CPU_CORE, &many).0 {
        let (exposed, total) = (step.exposed, communication(&result.buckets));
        assert!(result.buckets.len() > 2 && exposed < total, "exposed {exposed} of {total}");
        for pair in result.buckets.windows(2) {
            assert!(pair[0].sent <= pair[1].sent && pair[0].done < pair[1].done);
            assert!(pair[1].ready <= pair[1].sent && pair[1].sent < pair[1].done);
        }
        // With all gradients in one bucket, no backward computation is left to hide the communication.
        let one = many.clone().with(|c| c.ddp.first_bucket_kib = 1 << 20);
        let (one, result) = timed(4, Device::CPU_CORE, &one).0.swap_remove(0);
        assert_eq!((result.buckets.len(), one.exposed), (1, communication(&result.buckets)));
        assert!(one.exposed > exposed);
    }
}

/// The prediction equals the run to the picosecond if every bucket's elements divide among the ranks. Otherwise ranks leave an
/// all-reduce a few nanoseconds apart (with folded rank counts, up to a message), and the prediction is that of the slowest
/// rank.
#[test]
fn the_prediction_is_the_virtual_clock_of_a_real_run() {
    // On the slow device the backward pass hides nearly all communication; on the fast one the step waits for the network.
    let devices = [Device::CPU_CORE, Device::default()];
    for (ranks, device) in [1, 2, 3, 4, 6, 8].into_iter().flat_map(|n| devices.map(|device| (n, device))) {
        for (first_bucket_kib, bucket_kib) in [(1, 32), (64, 64), (1024, 1024)] {
            // The number of totals of synchronised batch norms is odd: ranks leave their all-reduce at different times.
            let config = Config::default().with(|c| {
                c.training.batch = 4;
                c.training.accumulate = if first_bucket_kib == 64 { 3 } else { 1 };
                c.model.sync_batch_norm = ranks == 1;
                c.optimiser.name = if ranks == 2 { "adam" } else { "sgd" }.into();
                c.precision.loss_scale = if ranks == 1 { 8.0 } else { 0.0 };
                c.optimiser.clip_norm = if ranks == 4 { 1.0 } else { 0.0 };
                c.ddp.first_bucket_kib = first_bucket_kib;
                c.ddp.bucket_kib = bucket_kib;
            });
            let (real, predicted) = timed(ranks, device, &config);
            let (predicted, buckets) = (predicted.time.total(), predicted.buckets);
            assert!(real.iter().all(|(_, result)| result.buckets.len() == buckets.len()));
            let steps = real.iter().map(|(step, _)| step.total());
            let slowest = steps.clone().max().unwrap();
            println!("{ranks} x {}, {} buckets: {slowest} and {predicted}", device.name, buckets.len());
            let even = ranks.is_power_of_two()
                && buckets.iter().all(|bucket| (bucket.bytes / 4).is_multiple_of(u64::from(ranks)));
            let allowed = if even { 0 } else { 10_000 };
            assert!(slowest.0.abs_diff(predicted.0) <= allowed, "{ranks} ranks: {slowest} {predicted}");
            assert!(!even || steps.clone().all(|step| step == predicted), "{ranks} ranks: {predicted}");
        }
    }
}

/// What a hook computes and sends takes the same time modeled as run: buckets of 4 ranks' CNN, in which all elements divide.
#[test]
fn hooks_cost_what_they_cost_on_the_virtual_clock() {
    let plain = Config::default().with(|c| {
        c.training.batch = 4;
        c.ddp.first_bucket_kib = 1;
        c.ddp.bucket_kib = 32;
    });
    let time = |hook: &str, device| {
        let config = plain.clone().with(|c| {
            c.ddp.hook = hook.into();
            c.ddp.topk_share = 0.25;
        });
        let (real, predicted) = timed(4, device, &config);
        let slowest = real.iter().map(|(step, _)| step.total()).max().unwrap();
        let predicted = predicted.time.total();
        println!("{hook} on {}: {slowest} and {predicted}", device.name);
        assert!(slowest.0.abs_diff(predicted.0) <= 10_000, "{hook}: {slowest} {predicted}");
        predicted
    };
    for device in [Device::CPU_CORE, Device::default()] {
        let none = time("none", device);
        for hook in ["fp16", "bf16", "int8", "topk", "powersgd"] {
            assert_ne!(time(hook, device), none, "{hook} costs nothing");
        }
    }
}

/// Groups of parameters with buckets of their own, and running statistics that rank 0 sends in each step, take the time that they
/// take in a run; options that exchange nothing take no time.
#[test]
fn options_of_ddp_take_their_time_on_the_clock() {
    let plain = Config::default().with(|c| {
        c.training.batch = 4;
        c.ddp.first_bucket_kib = 1;
        c.ddp.bucket_kib = 32;
    });
    let time = |what: &str, config: &Config| {
        let (real, predicted) = timed(4, Device::default(), config);
        let slowest = real.iter().map(|(step, _)| step.total()).max().unwrap();
        let predicted = predicted.time.total();
        println!("{what}: {slowest} and {predicted}");
        assert!(slowest.0.abs_diff(predicted.0) <= 10_000, "{what}: {slowest} {predicted}");
        predicted
    };
    let none = time("neither", &plain);
    let groups = plain.clone().with(|c| c.ddp.groups = vec!["conv".into(), "fc".into()]);
    assert_ne!(time("ddp.groups", &groups), none);
    let buffers = plain.clone().with(|c| c.ddp.broadcast_buffers = true);
    assert!(time("ddp.broadcast_buffers", &buffers) > none);
    let unused = plain.with(|c| c.ddp.find_unused = true);
    assert_eq!(time("ddp.find_unused", &unused), none);
}

#[test]
fn a_thousand_ranks_and_more_are_predicted() {
    let mut last = 0.0;
    for ranks in [1, 8, 64, 1024, 4096] {
        let topology = Topology::named("nodes8", ranks).unwrap();
        let plan = Plan::default();
        let (device, costs) = (Device::default(), Costs::default());
        let machine = ModeledMachine { costs, ..ModeledMachine::new(&topology, device, &plan) };
        let step = predict(&Config::default(), SampleForm::new((1, 8, 8), 10), &machine).unwrap();
        assert!(step.throughput() > last, "{ranks} ranks: {} samples/s", step.throughput());
        last = step.throughput();
    }
}
