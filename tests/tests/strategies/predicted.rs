//! Every strategy on the clock, beside the virtual time of a run with its arithmetic.

use crate::{ROWS, digits, on};
use allfold_collectives::{Communicator, Plan, World};
use allfold_prediction::{ModeledMachine, StepPrediction, predict};
use allfold_sim::{Costs, Device, Picos, Sharing};
use allfold_tests::training::switch;
use allfold_trainer::{Config, Observer, StepReport, data, train};

/// The time of a rank's last step.
#[derive(Default)]
struct LastStep(Picos);

impl Observer for LastStep {
    fn step(&mut self, report: &StepReport) {
        self.0 = report.time.total();
    }
}

/// The last of five steps of each rank on virtual time.
fn run(config: &Config, ranks: u32, device: Device) -> Vec<Picos> {
    let body = |comm: Communicator| {
        let mut last = LastStep::default();
        train(config, &comm, &mut last)?;
        Ok::<_, allfold_trainer::Error>(last.0)
    };
    World::sim(&switch(ranks)).device(device).costs(Costs::default()).run(body).unwrap()
}

fn predicted(config: &Config, ranks: u32, device: Device) -> StepPrediction {
    let (train, _) = data::load(config).unwrap();
    let (topology, plan) = (switch(ranks), Plan::default());
    let (costs, sharing) = (Costs::default(), Sharing::default());
    let machine = ModeledMachine { device, topology: &topology, costs, sharing, plan: &plan };
    predict(config, train.shape, train.classes, &machine).unwrap()
}

#[test]
fn the_clock_is_the_virtual_time_of_every_strategy() {
    for row in ROWS.iter().filter(|row| !["data_parallel", "parameter_server"].contains(&row.strategy)) {
        for base in [digits(), row.gpt()].into_iter().filter(|base| row.takes(base)) {
            let base = Config { max_steps: 5, epochs: 5, ..base };
            for ranks in [2, 4, 8] {
                let Some(data) = (row.data)(ranks) else { continue };
                if ["interleaved", "zb_v"].contains(&row.name) && ranks == 8 && base.model == "gpt" {
                    continue;
                }
                let config = on(row, &base, data);
                for device in [Device::CPU_CORE, Device::A100_F32] {
                    let real = run(&config, ranks, device);
                    let found = predicted(&config, ranks, device);
                    let slowest = real.iter().max().unwrap();
                    println!(
                        "| {:<22} | {:<4} | {ranks} | {:<9} | {slowest} | {} | {:+.6} |",
                        row.name,
                        base.model,
                        device.name,
                        found.time.total(),
                        found.time.total().as_secs() / slowest.as_secs() - 1.0
                    );
                }
            }
        }
    }
}
