//! Shares of a step's samples with which ranks on unlike devices end at the same time.
//!
//! A device's step over n samples takes a + c n: launches and the optimiser's step, and the time per sample. With
//! T = (all samples + sum of a/c) / (sum of 1/c), the ranks that have (T - a) / c samples all end at T.

use crate::{ModeledMachine, StepPrediction, predict};
use allfold_sim::{Device, Faults, Rank, Topology};
use allfold_trainer::config::ParallelConfig;
use allfold_trainer::engine::MeshAxis;
use allfold_trainer::{Config, Error, Result, SampleForm, strategies};

/// The least time of a sample, as a share of the mean.
const LEAST: f64 = 1e-3;

/// A device's step: seconds that do not depend on the samples, and seconds per sample.
#[derive(Clone, Copy)]
struct DeviceStep {
    fixed: f64,
    per_sample: f64,
}

/// `config` for one rank, with which the step of a rank's device is timed.
pub fn alone(config: &Config) -> Config {
    config.clone().with(|c| {
        c.strategy = "single".into();
        c.parallel = ParallelConfig::default();
        c.ddp.hook = "none".into();
        c.ddp.groups = Vec::new();
        c.ddp.broadcast_buffers = false;
    })
}

/// `parallel.shares` for `config` on this machine, so that all ranks with samples of their own compute equally long. Of ranks with the
/// same samples, the slowest counts. Empty if all devices are alike.
///
/// # Errors
/// A step that cannot be predicted.
pub fn shares_by_speed(config: &Config, samples: SampleForm, machine: &ModeledMachine) -> Result<Vec<u32>> {
    let (alone, one) = (alone(config), Topology::named("switch", 1));
    let one = one.map_err(|error| Error::Config(error.to_string()))?;
    let seconds = |device: Device, batch: usize| -> Result<f64> {
        let machine = ModeledMachine { device, devices: &Faults::NONE, topology: &one, ..*machine };
        let step: StepPrediction =
            predict(&alone.clone().with(|c| c.training.batch = batch), samples, &machine)?;
        Ok(step.time.total().as_secs())
    };
    let device_of = |rank: usize| *machine.devices.device(Rank(rank as u32), &machine.device);
    shares_by_time(config, machine.topology.ranks(), device_of, seconds)
}

/// [`shares_by_speed`] on devices of any kind: `device_of` gives the device of each of `ranks` ranks, and `seconds` how long a device
/// takes for a step over so many samples. Each device is timed twice.
///
/// # Errors
/// Those of `seconds`; ranks that the strategy does not take.
pub fn shares_by_time<D: Copy + PartialEq, E: From<Error>>(
    config: &Config,
    ranks: u32,
    device_of: impl Fn(usize) -> D,
    mut seconds: impl FnMut(D, usize) -> std::result::Result<f64, E>,
) -> std::result::Result<Vec<u32>, E> {
    let parallel = ParallelConfig { shares: Vec::new(), ..config.parallel.clone() };
    let mesh = strategies::plan(&config.clone().with(|c| c.parallel = parallel), 0, ranks)?.mesh;
    let mut known: Vec<(D, DeviceStep)> = Vec::new();
    let places = mesh.data / mesh.context;
    let mut steps = vec![DeviceStep { fixed: 0.0, per_sample: 0.0 }; places];
    for rank in 0..mesh.ranks() {
        let device = device_of(rank);
        let step = match known.iter().find(|(known, _)| *known == device) {
            Some((_, step)) => *step,
            None => {
                let batch = config.training.batch.max(1);
                let (few, many) = (seconds(device, batch)?, seconds(device, 2 * batch)?);
                // A device that is hardly busy takes as long for twice the samples.
                let per_sample = ((many - few) / batch as f64).max(LEAST * few / batch as f64);
                let step = DeviceStep { fixed: (few - per_sample * batch as f64).max(0.0), per_sample };
                known.push((device, step));
                step
            }
        };
        let slowest = &mut steps[mesh.position(rank, MeshAxis::Data).index / mesh.context];
        if step.per_sample > slowest.per_sample {
            *slowest = step;
        }
    }
    Ok(if known.len() > 1 { balanced(&steps, config.training.batch * places) } else { Vec::new() })
}

/// Shares of `samples` samples in thousandths of a sample, at least one sample each.
fn balanced(steps: &[DeviceStep], samples: usize) -> Vec<u32> {
    let sum = |of: fn(&DeviceStep) -> f64| steps.iter().map(of).sum::<f64>();
    let end = (samples as f64 + sum(|step| step.fixed / step.per_sample)) / sum(|step| 1.0 / step.per_sample);
    let share = |step: &DeviceStep| ((end - step.fixed) / step.per_sample).max(1.0);
    steps.iter().map(|step| (share(step) * 1000.0).round() as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 8 samples for each of three ranks, of which two have the slow device.
    fn shared(seconds: impl Fn(char, usize) -> f64) -> Vec<f64> {
        let config = Config::default().with(|c| c.training.batch = 8);
        let devices = ['f', 's', 's'];
        let ok = |device, batch| Ok::<f64, Error>(seconds(device, batch));
        let shares = shares_by_time(&config, 3, |rank| devices[rank], ok).unwrap();
        shares.into_iter().map(|share| f64::from(share) / 1000.0).collect()
    }

    #[test]
    fn ranks_end_together_by_two_times_of_each_device() {
        let seconds =
            |device, samples: f64| if device == 'f' { 0.5 + 0.1 * samples } else { 0.2 + 0.3 * samples };
        let shares = shared(|device, batch| seconds(device, batch as f64));
        assert!((shares.iter().sum::<f64>() - 24.0).abs() < 0.01, "{shares:?}");
        let ends = [seconds('f', shares[0]), seconds('s', shares[1]), seconds('s', shares[2])];
        assert!(ends.iter().all(|end| (end - ends[0]).abs() < 1e-3), "{ends:?}");
    }

    /// A GPU that is hardly busy takes equally long for twice the samples, or by chance less.
    #[test]
    fn a_device_without_a_time_per_sample_gets_most_samples_and_not_all() {
        for many in [1.0, 0.9] {
            let shares = shared(|device, batch| match device {
                'f' if batch > 8 => 1e-3 * many,
                'f' => 1e-3,
                _ => 0.01 * batch as f64,
            });
            assert!(shares[0] > 20.0 && shares[1] == 1.0 && shares[2] == 1.0, "{shares:?}");
        }
        let config = Config::default().with(|c| c.training.batch = 8);
        let alike = shares_by_time(&config, 3, |_| 'a', |_, _| Ok::<f64, Error>(1.0));
        assert!(alike.unwrap().is_empty());
    }
}
