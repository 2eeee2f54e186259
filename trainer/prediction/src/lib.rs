//! The predicted time of a training step: the strategies of the trainer on a clock, without arithmetic.
//!
//! ```text
//! compute        | data | forward | fc | conv2   | conv1 |        | unpack | SGD |
//! communication                        | bucket 0 |  bucket 1     |
//! ```
//!
//! A rank on the clock runs a strategy's own code: its driver and its sharing call the clock as they call the engine of the CPU. Of up
//! to [`MOST_LINKED`] ranks, and with `parameter_server`, every rank is stepped, and messages without contents share links as in a run
//! on virtual time. Of more ranks, and where collectives are NCCL's, one rank represents all that do the same: one rank of each stage of
//! a pipeline, with the largest part of the layers, and a single rank of any other strategy. These ranks compute equally long and enter
//! every exchange together; all groups of an axis exchange at the same time, in the time that [`allfold_collectives::time`] computes for
//! their schedules on the topology. Where a schedule lets ranks finish at different times (unequal chunks, rank counts that are no power
//! of two), the last rank's time is taken for all, and exchanges of several communicators do not slow each other.
//!
//! What is timed is a [`StepCosts`]: a real network with the costs of its kernels on a device ([`predict`]), or the layer table
//! of a large one ([`allfold_trainer::workloads`], [`predict_workload`]).

mod clock;
mod exchange;
mod groups;
mod linked_step;
mod modeled_ranks;
mod network;
mod overheads;
mod step;
mod step_costs;
#[cfg(test)]
mod tests;
mod uniform_costs;
mod unlike;
mod workload;

pub use exchange::{
    ExchangeModel, GroupedCollective, MessageTimes, NcclModel, NcclSystem, SimulatedExchange,
};
pub use groups::RankGroups;
pub use linked_step::{EveryRank, MOST_LINKED, MOST_SERVED};
pub use overheads::{Overheads, expected_max};
pub use step::SteppedRank;
pub use step_costs::{DdpOptions, ElementPass, MeasuredPart, MeasuredTimes, StepCosts};
pub use uniform_costs::UniformCosts;
pub use unlike::{alone, shares_by_speed, shares_by_time};
pub use workload::{WorkloadTraining, predict_data_parallel, predict_workload};

use allfold_collectives::Plan;
use allfold_kernels::nn::Float;
use allfold_sim::{Costs, Device, Faults, Picos, Sharing, Topology};
use allfold_trainer::config::ElementType;
use allfold_trainer::engine::Mesh;
use allfold_trainer::strategies::ddp::Ddp;
use allfold_trainer::strategies::single::Single;
use allfold_trainer::strategies::{DataSharing, Driver, Plain, hooks};
use allfold_trainer::timing::{BucketTimes, StepBreakdown, StepSpan};
use allfold_trainer::{Config, MemoryUse, Result, SampleForm};
use clock::StepRules;
use modeled_ranks::ModeledRanks;
use step::RankClass;

/// The machine that a step is predicted for.
#[derive(Clone, Copy)]
pub struct ModeledMachine<'a> {
    /// The device of each rank for which `devices` names no other.
    pub device: Device,
    /// Rules that give ranks other devices, such as `device=4-7:h100`. Faults do not act on predictions.
    pub devices: &'a Faults,
    /// The number of ranks, and the links between them.
    pub topology: &'a Topology,
    /// The costs of messages and launches.
    pub costs: Costs,
    /// How flows share links.
    pub sharing: Sharing,
    /// The plan that chooses algorithms, as in a communicator.
    pub plan: &'a Plan,
    /// NCCL on the machine, if collectives are NCCL's; otherwise they are those of the plan, simulated.
    pub nccl: Option<&'a NcclSystem>,
}

impl<'a> ModeledMachine<'a> {
    /// Ranks with one device each, and the topology's costs; flows share links evenly.
    pub fn new(topology: &'a Topology, device: Device, plan: &'a Plan) -> ModeledMachine<'a> {
        static ALIKE: Faults = Faults::NONE;
        let (costs, sharing) = (topology.costs(), Sharing::default());
        ModeledMachine { device, devices: &ALIKE, topology, costs, sharing, plan, nccl: None }
    }
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
    /// The number of parameters of the whole network.
    pub parameters: u64,
    /// The most that each stepped rank holds at one time of a step, by class, as in the engine of the CPU, whose activations are as wide
    /// as its parameters. Empty if the sizes of the network's tensors are not known.
    pub peaks: Vec<MemoryUse>,
    /// The work of each stepped rank, counted from the start of its step: of one rank of each stage of a pipeline; with `data_parallel`,
    /// of all ranks.
    #[serde(skip)]
    pub spans: Vec<Vec<StepSpan>>,
    /// How the exchanges were timed, each engine once: `events_by_symmetry`, `clocks, chunks rounded up`, `NCCL's model`.
    pub engines: Vec<String>,
}

impl StepPrediction {
    /// Samples per second, over all ranks.
    pub fn throughput(&self) -> f64 {
        self.samples as f64 / self.time.total().as_secs()
    }

    /// The memory of the rank that holds the most at one time, if it is known.
    pub fn peak(&self) -> Option<MemoryUse> {
        self.peaks.iter().copied().max_by_key(MemoryUse::total)
    }
}

/// Predicts the step of `config` over samples of the form `samples`.
///
/// # Errors
/// A configuration that makes no sense, a hook or a strategy that cannot be predicted, or a schedule that cannot be timed.
pub fn predict(config: &Config, samples: SampleForm, machine: &ModeledMachine) -> Result<StepPrediction> {
    predict_by(config, samples, machine, None)
}

/// As [`predict`], with the times of passes that a run of `config` measured, and not those of the machine's device.
///
/// # Errors
/// As [`predict`].
pub fn predict_measured(
    config: &Config,
    samples: SampleForm,
    machine: &ModeledMachine,
    times: MeasuredTimes,
) -> Result<StepPrediction> {
    predict_by(config, samples, machine, Some(times))
}

fn predict_by(
    config: &Config,
    samples: SampleForm,
    machine: &ModeledMachine,
    times: Option<MeasuredTimes>,
) -> Result<StepPrediction> {
    allfold_trainer::config::check(config)?;
    hooks::check_predicted(config)?;
    match config.precision.dtype {
        ElementType::F64 => predict_network::<f64>(config, samples, machine, times),
        ElementType::F32 => predict_network::<f32>(config, samples, machine, times),
    }
}

/// Predicts a step of `config` on every rank, with every message, which [`predict`] does not give for ranks that another rank
/// represents.
///
/// # Errors
/// As [`predict`]; more than [`MOST_SERVED`] ranks.
pub fn predict_every_rank(
    config: &Config,
    samples: SampleForm,
    machine: &ModeledMachine,
) -> Result<EveryRank> {
    allfold_trainer::config::check(config)?;
    hooks::check_predicted(config)?;
    let with = (config, None);
    match config.precision.dtype {
        ElementType::F64 => ModeledRanks::<f64>::new(with, samples, machine, true)?.every_rank(true),
        ElementType::F32 => ModeledRanks::<f32>::new(with, samples, machine, true)?.every_rank(true),
    }
}

fn predict_network<F: Float>(
    config: &Config,
    samples: SampleForm,
    machine: &ModeledMachine,
    times: Option<MeasuredTimes>,
) -> Result<StepPrediction> {
    ModeledRanks::<F>::new((config, times), samples, machine, false)?.step()
}

/// Predicts a data-parallel step from the costs of its phases. A single rank exchanges nothing.
///
/// # Errors
/// An exchange that cannot be timed.
pub fn predict_steps(
    steps: &dyn StepCosts,
    options: DdpOptions,
    ranks: u32,
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    let DdpOptions { batch, accumulate, caps, views, scaler } = options;
    let (uneven, clip, norms, parts) = (false, false, false, false);
    let rules = StepRules { uneven, views, scaler, clip, norms, parts, staleness: 0, period: 1 };
    let class = RankClass { costs: steps, batch };
    let driver = |_| {
        let sharing: Box<dyn DataSharing> = match caps.filter(|_| ranks > 1) {
            None => Box::new(Single),
            Some(caps) => Box::new(Ddp::with_caps(caps)),
        };
        Ok(Box::new(Plain { sharing, micro_batches: accumulate.max(1) }) as Box<dyn Driver>)
    };
    step::step((class, rules, Mesh::of_data(1, ranks)?), &driver, exchange)
}
