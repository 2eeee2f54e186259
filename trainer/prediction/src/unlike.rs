//! Shares of a step's samples by which ranks on unlike devices end at the same time.
//!
//! A device's step over n samples takes a + c n: launches and the optimiser's step, and the time per sample. With
//! T = (all samples + sum of a/c) / (sum of 1/c), the ranks that have (T - a) / c samples all end at T.

use crate::{ModeledMachine, StepPrediction, predict};
use allfold_sim::{Device, Faults, Rank, Topology};
use allfold_trainer::config::Parallel;
use allfold_trainer::engine::MeshAxis;
use allfold_trainer::{Config, Error, Result, strategies};

/// A device's step: seconds besides the samples, and seconds per sample.
#[derive(Clone, Copy)]
struct DeviceStep {
    fixed: f64,
    per_sample: f64,
}

/// `parallel.shares` for `config` on this machine, so that all ranks with samples of their own compute equally long. Of ranks with the
/// same samples, the slowest counts. Empty if all devices are alike.
///
/// # Errors
/// A step that cannot be predicted.
pub fn shares_by_speed(
    config: &Config,
    (shape, classes): ((usize, usize, usize), usize),
    machine: &ModeledMachine,
) -> Result<Vec<u32>> {
    let equal =
        Config { parallel: Parallel { shares: Vec::new(), ..config.parallel.clone() }, ..config.clone() };
    let mesh = strategies::plan(&equal, 0, machine.topology.ranks())?.mesh;
    let alone = Config {
        strategy: "single".into(),
        parallel: Parallel::default(),
        hook: "none".into(),
        groups: Vec::new(),
        broadcast_buffers: false,
        ..equal
    };
    let one = Topology::named("switch", 1).map_err(|error| Error::Config(error.to_string()))?;
    let seconds = |device: Device, batch: usize| -> Result<f64> {
        let machine = ModeledMachine { device, devices: &Faults::NONE, topology: &one, ..*machine };
        let step: StepPrediction = predict(&Config { batch, ..alone.clone() }, shape, classes, &machine)?;
        Ok(step.time.total().as_secs())
    };
    let mut known: Vec<(Device, DeviceStep)> = Vec::new();
    let places = mesh.data / mesh.context;
    let mut steps = vec![DeviceStep { fixed: 0.0, per_sample: 0.0 }; places];
    for rank in 0..mesh.ranks() {
        let device = *machine.devices.device(Rank(rank as u32), &machine.device);
        let step = match known.iter().find(|(known, _)| *known == device) {
            Some((_, step)) => *step,
            None => {
                let (batch, few) = (config.batch.max(1), seconds(device, config.batch.max(1))?);
                let per_sample = (seconds(device, 2 * batch)? - few) / batch as f64;
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
    Ok(if known.len() > 1 { balanced(&steps, config.batch * places) } else { Vec::new() })
}

/// Shares of `samples` samples in thousandths of a sample, at least one sample each.
fn balanced(steps: &[DeviceStep], samples: usize) -> Vec<u32> {
    let sum = |of: fn(&DeviceStep) -> f64| steps.iter().map(of).sum::<f64>();
    let end = (samples as f64 + sum(|step| step.fixed / step.per_sample)) / sum(|step| 1.0 / step.per_sample);
    let share = |step: &DeviceStep| ((end - step.fixed) / step.per_sample).max(1.0);
    steps.iter().map(|step| (share(step) * 1000.0).round() as u32).collect()
}
