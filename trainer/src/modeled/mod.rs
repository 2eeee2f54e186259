//! A data-parallel step without numbers: the same phases, buckets and costs as a real one, on clocks alone.
//!
//! ```text
//! compute        | data | forward | fc | conv2   | conv1 |        | unpack | SGD |
//! communication                        | bucket 0 |  bucket 1     |
//! ```
//!
//! One rank stands for all: they compute alike, so they enter every all-reduce together, and an all-reduce takes what
//! [`allfold_collectives::time`] says of its schedule on the topology. Where a schedule lets ranks finish at different
//! times (unequal chunks, folded rank counts), the last one's time is taken for all.
//!
//! What is timed is a [`StepCosts`]: a real network with what its kernels cost on a device ([`predict`]), or the layer table
//! of a large one ([`crate::workloads`], [`predict_workload`]). Both go through one timeline, with the buckets of real
//! training.

mod exchange;
mod network;
mod overheads;
mod step_costs;
#[cfg(test)]
mod tests;
mod timeline;
mod uniform_costs;
mod workload;

pub use exchange::{ExchangeModel, NcclModel, SimulatedExchange};
pub use overheads::{Overheads, expected_max};
pub use step_costs::{DdpOptions, StepCosts};
pub use uniform_costs::UniformCosts;
pub use workload::{WorkloadTraining, predict_workload};

use crate::timing::{BucketTimes, StepBreakdown};
use crate::{Config, Error, Result, strategies};
use allfold_collectives::Plan;
use allfold_sim::{Costs, Device, Picos, Sharing, Topology};

/// What the step would run on.
#[derive(Clone, Copy)]
pub struct ModeledMachine<'a> {
    /// What each rank computes with.
    pub device: Device,
    /// What joins the ranks; it says how many there are.
    pub topology: &'a Topology,
    /// What messages and launches cost.
    pub costs: Costs,
    /// How flows share links.
    pub sharing: Sharing,
    /// Which algorithms run, as a communicator would choose them.
    pub plan: &'a Plan,
}

/// A step as it would be. Predicted: no number was computed and no byte sent.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StepPrediction {
    /// Ranks.
    pub ranks: u32,
    /// Samples of all ranks in one step.
    pub samples: u64,
    /// Where the time of the step goes.
    pub time: StepBreakdown,
    /// How long the communication timeline is busy, hidden or not.
    pub communication: Picos,
    /// What happens to each bucket, from the start of the step.
    pub buckets: Vec<BucketTimes>,
    /// How the exchanges were timed, each way once: `orbit_events`, `orbit_events, chunks rounded up`, `NCCL's model`.
    pub engines: Vec<String>,
}

impl StepPrediction {
    /// Samples per second, over all ranks.
    pub fn throughput(&self) -> f64 {
        self.samples as f64 / self.time.total().as_secs()
    }
}

/// The step of `config` over samples of `shape` (channels, height, width).
///
/// # Errors
/// A configuration that makes no sense, a hook, whose exchange is not modeled, or a schedule that cannot be timed.
pub fn predict(
    config: &Config,
    shape: (usize, usize, usize),
    classes: usize,
    machine: &ModeledMachine,
) -> Result<StepPrediction> {
    config.check()?;
    if config.hook != "none" {
        return Err(Error::Config(format!(
            "`hook` is {}, whose exchange is not modeled; only that of `none` is",
            config.hook
        )));
    }
    strategies::fits(config, machine.topology.ranks())?;
    match config.dtype.as_str() {
        "f64" => network::predict::<f64>(config, shape, classes, machine),
        _ => network::predict::<f32>(config, shape, classes, machine),
    }
}

/// A step of anything that says what its parts take. Fewer than two ranks exchange nothing.
///
/// # Errors
/// An exchange that cannot be timed.
pub fn predict_steps(
    steps: &dyn StepCosts,
    rules: DdpOptions,
    ranks: u32,
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    let rules = DdpOptions { caps: rules.caps.filter(|_| ranks > 1), ..rules };
    timeline::Timeline { steps, rules, exchange, ranks }.step()
}
