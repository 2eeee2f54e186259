//! Shares of a step's samples by the speed of the ranks' devices: of models by prediction, of real ones by a few steps on each.

use super::launch_mode::LaunchMode;
use super::run::{RecordOptions, run_on};
use allfold_cli::error::{CommandError, CommandResult};
use allfold_prediction::{alone, shares_by_time};
use allfold_trainer::{Config, Dataset};
use indicatif::ProgressBar;

/// The number of steps by which a device is timed, of which those that warm up do not count.
const STEPS: u64 = 8;

/// `parallel.shares` for the ranks of `place`, so that all compute equally long.
///
/// # Errors
/// Ranks that are processes, or that all have one kind of device; a device that is missing; a step that cannot be timed.
pub fn shares_by_speed(
    config: &Config,
    data: &(Dataset, Dataset),
    place: &LaunchMode,
) -> CommandResult<Vec<u32>> {
    match place {
        LaunchMode::Threads(ranks) => measured(config, data, *ranks),
        _ => place.shares_by_speed(config, data.0.form()),
    }
}

/// The shares of ranks that are threads of this process.
fn measured(config: &Config, (train, test): &(Dataset, Dataset), ranks: u32) -> CommandResult<Vec<u32>> {
    let names: Vec<&str> = config.device.split(',').map(str::trim).collect();
    if names.iter().all(|name| *name == names[0]) {
        return Err(CommandError::usage(
            "--share-by-speed needs unlike devices, and all ranks have one kind: name others by --device, such as cuda:0,cpu",
        ));
    }
    let device_of = |rank: usize| names[rank.min(names.len() - 1)];
    let seconds = |device: &str, batch: usize| -> CommandResult<f64> {
        let mut one = alone(config).with(|c| {
            c.device = device.into();
            c.training.batch = batch;
            c.training.max_steps = STEPS;
            c.training.epochs = STEPS;
        });
        one.fixed_length();
        let data = (train.clone().first(batch * STEPS as usize), test.clone().first(1));
        let (place, bar) = (LaunchMode::Threads(1), ProgressBar::hidden());
        let timed = run_on(&one, &data, &place, &bar, RecordOptions::default())?;
        Ok(timed.step_us().0 / 1e6)
    };
    shares_by_time(config, ranks, device_of, seconds)
}
