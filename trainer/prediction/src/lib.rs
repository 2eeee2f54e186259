//! The predicted time of a data-parallel step: the phases, buckets and costs of a real step, without arithmetic.
//!
//! ```text
//! compute        | data | forward | fc | conv2   | conv1 |        | unpack | SGD |
//! communication                        | bucket 0 |  bucket 1     |
//! ```
//!
//! One rank represents all: ranks compute equally long, enter every all-reduce together, and an all-reduce takes the time that
//! [`allfold_collectives::time`] computes for its schedule on the topology. Where a schedule lets ranks finish at different
//! times (unequal chunks, rank counts that are no power of two), the last rank's time is taken for all.
//!
//! What is timed is a [`StepCosts`]: a real network with the costs of its kernels on a device ([`predict`]), or the layer table
//! of a large one ([`allfold_trainer::workloads`], [`predict_workload`]). Both go through one timeline, with the buckets of real
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

use allfold_collectives::Plan;
use allfold_sim::{Costs, Device, Picos, Sharing, Topology};
use allfold_trainer::timing::{BucketTimes, StepBreakdown};
use allfold_trainer::{Config, Error, Result, strategies};

/// The machine that a step is predicted for.
#[derive(Clone, Copy)]
pub struct ModeledMachine<'a> {
    /// The device of each rank.
    pub device: Device,
    /// The number of ranks, and the links between them.
    pub topology: &'a Topology,
    /// The costs of messages and launches.
    pub costs: Costs,
    /// How flows share links.
    pub sharing: Sharing,
    /// The plan that chooses algorithms, as in a communicator.
    pub plan: &'a Plan,
}

/// A predicted step: no arithmetic was done and no byte sent.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StepPrediction {
    /// The number of ranks.
    pub ranks: u32,
    /// The number of samples of all ranks in one step.
    pub samples: u64,
    /// The time by parts of the step.
    pub time: StepBreakdown,
    /// How long the communication timeline is busy, hidden or not.
    pub communication: Picos,
    /// The times of each bucket, counted from the start of the step.
    pub buckets: Vec<BucketTimes>,
    /// How the exchanges were timed, each engine once: `events_by_symmetry`, `clocks, chunks rounded up`, `NCCL's model`.
    pub engines: Vec<String>,
}

impl StepPrediction {
    /// Samples per second, over all ranks.
    pub fn throughput(&self) -> f64 {
        self.samples as f64 / self.time.total().as_secs()
    }
}

/// Predicts the step of `config` over samples of `shape` (channels, height, width).
///
/// # Errors
/// A configuration that makes no sense, a hook or a strategy that cannot be modeled, or a schedule that cannot be timed.
pub fn predict(
    config: &Config,
    shape: (usize, usize, usize),
    classes: usize,
    machine: &ModeledMachine,
) -> Result<StepPrediction> {
    config.check()?;
    if config.hook != "none" {
        return Err(Error::Config(format!(
            "`hook` is {}, and only the exchange of `none` can be modeled",
            config.hook
        )));
    }
    strategies::fits(config, machine.topology.ranks())?;
    if !strategies::has_own_gpu_step(config) {
        return Err(Error::Config(format!(
            "strategy `{}` cannot be predicted without its arithmetic, only `single` and `ddp` can: run it on virtual time",
            config.strategy
        )));
    }
    match config.dtype.as_str() {
        "f64" => network::predict::<f64>(config, shape, classes, machine),
        _ => network::predict::<f32>(config, shape, classes, machine),
    }
}

/// Predicts a step from the costs of its phases. A single rank exchanges nothing.
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
