//! `train`, `scale`, `span` and `parity`: training runs, scaling curves and the timeline of a step.

use super::waiting::WaitingFor;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// How a training run is set up: what a measurement and a prediction of the same run have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The backend: `threads`, `tcp`, `mpi` (measured); `sim` with real arithmetic, `modeled` with shapes alone.
    pub backend: String,
    /// The device of each rank: `cpu`, or the GPU's name; of a simulated run, the device model.
    pub device: String,
    /// The model's name: `cnn`, ...
    pub model: String,
    /// The strategy's name: `single`, `ddp`, ...
    pub strategy: String,
    /// Size of the group.
    pub ranks: u32,
    /// How the ranks are laid out: the size of each axis, by name. Their product is the size of the group.
    pub mesh: BTreeMap<String, u32>,
}

impl Setup {
    /// The properties that runs of one curve or row have in common: all but the number of ranks.
    pub fn kind(&self) -> [&str; 4] {
        [&self.backend, &self.device, &self.model, &self.strategy]
    }

    /// The mesh of pure data parallelism.
    pub fn data_parallel(ranks: u32) -> BTreeMap<String, u32> {
        BTreeMap::from([("data".to_string(), ranks)])
    }
}

/// How the time of a step is spent, in microseconds per step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Preparation of the batch.
    pub data_us: f64,
    /// The forward pass and the loss; null where it is not timed alone, as on GPUs.
    #[serde(deserialize_with = "number")]
    pub forward_us: f64,
    /// The backward pass; on GPUs the whole step but the batch.
    pub backward_us: f64,
    /// Waiting for communication that the backward pass did not hide; null where it is not timed alone, as on GPUs.
    #[serde(deserialize_with = "number")]
    pub exposed_us: f64,
    /// The optimiser's step; null where it is not timed alone, as on GPUs.
    #[serde(deserialize_with = "number")]
    pub optimiser_us: f64,
}

/// Bytes that a rank holds, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// Bytes of the parameters.
    pub params: u64,
    /// Bytes of the gradients, including gradients that are kept from one micro-batch to the next.
    pub gradients: u64,
    /// Bytes of the running statistics.
    pub buffers: u64,
    /// Bytes of the activations.
    pub activations: u64,
    /// Bytes of the values that layers save for their backward pass.
    pub saved_for_backward: u64,
    /// Bytes of the gradients with respect to activations, of free buffers for the next tensors, and of messages that are under way.
    pub activation_gradients: u64,
    /// Bytes of the optimiser's state.
    pub optimiser: u64,
    /// Bytes of the buckets that are not views of the gradients, and of their hook's state.
    pub buckets: u64,
}

impl RankMemory {
    /// The sum of all classes.
    pub fn total(&self) -> u64 {
        let RankMemory { params, gradients, buffers, activations, saved_for_backward, .. } = *self;
        let RankMemory { activation_gradients, optimiser, buckets, .. } = *self;
        let own = params + gradients + buffers + optimiser + buckets;
        own + activations + saved_for_backward + activation_gradients
    }

    /// Whether the total exceeds the memory of a device with this many bytes; false where the bytes are not known.
    pub fn exceeds(&self, device_memory: Option<u64>) -> bool {
        self.excess(device_memory).is_some()
    }

    /// The total and the bytes of the device's memory, if the total exceeds them.
    pub fn excess(&self, device_memory: Option<u64>) -> Option<(u64, u64)> {
        device_memory.map(|has| (self.total(), has)).filter(|(needed, has)| needed > has)
    }
}

/// The times of a bucket of gradients, in microseconds from the start of its step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketLife {
    /// The bucket's position in the order of sending.
    pub bucket: usize,
    /// The number of parameters in the bucket.
    pub params: usize,
    /// The number of bytes in the bucket.
    pub bytes: u64,
    /// When the bucket's last gradient was computed.
    pub ready_us: f64,
    /// When the bucket was sent: after it was ready and after the previous bucket was sent.
    pub sent_us: f64,
    /// When the bucket's sum had arrived.
    pub done_us: f64,
}

/// JSON has no NaN and no infinity: they are written as null, and read as NaN.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// As [`number`], of a field that may be left out.
fn some_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    number(from).map(Some)
}

/// The scores at the end of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochScores {
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Mean loss of the epoch's steps; null where it is no number.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// The set that the run is scored on: `test` or `validation`.
    pub scored_on: String,
    /// Share of that set that is classified right.
    pub accuracy: f64,
    /// Mean loss on that set.
    pub score_loss: f64,
    /// Share of the training set that is classified right; only with the key `training.score_train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_accuracy: Option<f64>,
    /// Mean loss on the training set with the weights at the end of the epoch; only with the key `training.score_train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_loss: Option<f64>,
}

/// One step of a training run. The record of the last step also contains the end of the run.
/// Timed by a real clock if `MEASURED`, else by the virtual clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingStep<const MEASURED: bool> {
    /// The setup of the run.
    #[serde(flatten)]
    pub setup: Setup,
    /// Number of the step, from 0.
    pub step: u64,
    /// Mean loss of the step's batch over all ranks, exact to the last bit; null where it is no number.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// The learning rate of the step; left out of steps before those of a resumed run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// The buckets that rank 0 sent; only of the traced step, or of the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<BucketLife>,
    /// How long each rank waited for each other one in the step. Left out where this is not known: of one rank and of more
    /// than 256, of ranks that are processes or on GPUs, of a resumed run's earlier steps, and of some steps of a run with
    /// a million.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Vec<WaitingFor>>,
    /// The scores of the epoch; only in the record of an epoch's last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<EpochScores>,
    /// The end of the run; only in the record of the last step.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub end: Option<TrainingEnd>,
}

/// A [`TrainingStep`] by the real clock.
pub type MeasuredStep = TrainingStep<true>;
/// A [`TrainingStep`] by the virtual clock.
pub type SimulatedStep = TrainingStep<false>;

/// The end of a training run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingEnd {
    /// Share of the test set that is classified right.
    pub accuracy: f64,
    /// The number of epochs after which the run ended early, because its scores no longer got better; only of such a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_early_after: Option<u64>,
    /// Samples of a rank in a step; left out by versions before this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// Training samples per second, over all ranks, in the steps after those that warm up.
    pub samples_per_s: f64,
    /// Samples per second by the median step of the slowest rank, after the first third of the steps. Only for runs on
    /// GPUs, whose first steps compile kernels, search for the fastest algorithms and capture graphs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady_samples_per_s: Option<f64>,
    /// The path by which GPUs summed gradients, with the version of NCCL if it is NCCL, and why; only of runs on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// Warm-up steps, which are not timed: they compile, allocate and fill caches.
    pub warmup_steps: u64,
    /// Mean time of a step, in microseconds.
    pub time_us: f64,
    /// How the time of a step is spent.
    #[serde(flatten)]
    pub breakdown: Breakdown,
    /// Bytes that rank 0 held after the last step, by category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<RankMemory>,
    /// Hash of every loss of the run, bit for bit.
    pub losses_hash: String,
    /// Hash of the final weights, bit for bit.
    pub weights_hash: String,
}

/// The progress of a training run: written every few seconds during the run.
/// Timed by a real clock if `MEASURED`, else by the virtual clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunProgress<const MEASURED: bool> {
    /// The setup of the run.
    #[serde(flatten)]
    pub setup: Setup,
    /// Number of the step that was just done, from 0.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Mean loss of the step's batch over all ranks; null where it is no number, and while it is not known.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// The learning rate of the step.
    pub lr: f64,
    /// Samples per second over all ranks, by the time of this step on rank 0.
    pub samples_per_s: f64,
}

/// How long the passes of one layer take in a step of a rank: means over the profiled steps of the ranks of this process that have
/// the layer.
/// Timed by a real clock if `MEASURED`, else by the virtual clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerPasses<const MEASURED: bool> {
    /// The setup of the run.
    #[serde(flatten)]
    pub setup: Setup,
    /// The name of the layer, or `loss`.
    pub layer: String,
    /// The profiled steps of a rank.
    pub steps: u64,
    /// The forward passes, in microseconds.
    pub forward_us: f64,
    /// The gradients of the inputs, in microseconds.
    pub input_grad_us: f64,
    /// The gradients of the weights, in microseconds.
    pub weight_grad_us: f64,
}

/// One point of a scaling curve.
/// Timed by a real clock if `MEASURED`, else by the virtual clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScalePoint<const MEASURED: bool> {
    /// The setup of the run.
    #[serde(flatten)]
    pub setup: Setup,
    /// Samples per rank and step.
    pub batch: u64,
    /// The machine: this one's cores, or the topology and device that were simulated.
    pub topology: String,
    /// Mean time of a step after those that warm up, in microseconds.
    pub time_us: f64,
    /// Standard error of `time_us`; 0 where there is none.
    pub time_error_us: f64,
    /// Waiting for communication that the backward pass did not hide, in microseconds; null where it is not measured, as on GPUs.
    #[serde(deserialize_with = "number")]
    pub exposed_us: f64,
    /// The path by which GPUs summed gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// Training samples per second, over all ranks, in the same steps.
    pub samples_per_s: f64,
    /// The rate of a rank relative to that in the point of the fewest ranks that fits in memory, which is one rank where it fits:
    /// samples_per_s / (ranks x samples_per_s of one rank). Null for a point that does not fit.
    #[serde(deserialize_with = "number")]
    pub efficiency: f64,
    /// The engines that timed modeled exchanges, with a note if chunks were rounded up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<String>,
    /// The memory of the rank that holds the most at one time of a step; not recorded of runs on this machine's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<RankMemory>,
    /// Bytes of the memory of each rank's device, of the smallest one if the devices differ; left out where they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<u64>,
}

/// A [`ScalePoint`] by the real clock.
pub type MeasuredScale = ScalePoint<true>;
/// A [`ScalePoint`] by the virtual clock.
pub type SimulatedScale = ScalePoint<false>;

impl<const MEASURED: bool> ScalePoint<MEASURED> {
    /// The bytes that a rank needs and those that its device has, if they are more than the device has.
    pub fn excess(&self) -> Option<(u64, u64)> {
        self.memory?.excess(self.device_memory)
    }

    /// Sets the efficiency of each point of one curve. A point that does not fit in memory has none, and is not a base.
    pub fn set_efficiency(points: &mut [Self]) {
        let rate = |point: &Self| point.samples_per_s / f64::from(point.setup.ranks);
        let fits = points.iter().filter(|point| point.excess().is_none());
        let base = fits.min_by_key(|point| point.setup.ranks).map_or(f64::NAN, rate);
        for point in points {
            point.efficiency = if point.excess().is_none() { rate(point) / base } else { f64::NAN };
        }
    }
}

/// One strategy of a comparison, on the same samples as all others.
/// Timed by a real clock if `MEASURED`, else by the virtual clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComparedStrategy<const MEASURED: bool> {
    /// The setup of the run.
    #[serde(flatten)]
    pub setup: Setup,
    /// Samples of all ranks together in a step.
    pub batch: u64,
    /// Micro-batches that a rank cuts its samples of a step into.
    pub micro_batches: u64,
    /// The machine: this one's cores, or the topology and device that were simulated.
    pub topology: String,
    /// Time of a step: the median over the steps after those that warm up, in microseconds.
    pub step_us: f64,
    /// How the time of a step is spent, as the mean over all ranks.
    #[serde(flatten)]
    pub breakdown: Breakdown,
    /// Time that each rank waits for others in a step, in microseconds, by rank.
    pub waiting_us: Vec<f64>,
    /// How long each rank waits for each other one in a step, as the mean over the steps after those that warm up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<WaitingFor>,
    /// Time that each rank's communication is under way in the last step, waited for or not, in microseconds, by rank; known on the
    /// simulator only. Communication that the rank does not wait for is hidden by computation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub communication_us: Vec<f64>,
    /// Bytes that each rank sends in a step, by rank. Counted on the simulator, also for a run on threads, which sends the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bytes_sent: Vec<u64>,
    /// Bytes that all ranks send in a step, by operation. Counted on the simulator, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bytes_by_operation: BTreeMap<String, u64>,
    /// Bytes that each rank holds when it holds the most, by rank.
    pub peak_bytes: Vec<u64>,
    /// The bytes of the rank with the highest peak, at that peak, by category.
    pub memory: RankMemory,
    /// Bytes of the memory of each simulated rank's device; left out where they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<u64>,
    /// Mean loss of the last step's samples, exact to the last bit; null where it is no number, left out where nothing was computed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_number")]
    pub loss: Option<f64>,
    /// Hash of the final weights, bit for bit; left out where nothing was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_hash: Option<String>,
}

/// A [`ComparedStrategy`] by the real clock.
pub type MeasuredComparison = ComparedStrategy<true>;
/// A [`ComparedStrategy`] by the virtual clock.
pub type SimulatedComparison = ComparedStrategy<false>;

/// For each rank the communication that its computation hides, in microseconds: the time that communication is under way and the rank
/// does not wait for it.
pub fn hidden_us(communication_us: &[f64], waiting_us: &[f64]) -> Vec<f64> {
    // Both are sums of spans in picoseconds, rounded differently.
    let hidden =
        |(all, waited): (&f64, &f64)| Some(all - waited).filter(|hidden| *hidden > 1e-3).unwrap_or(0.0);
    communication_us.iter().zip(waiting_us).map(hidden).collect()
}

/// A strategy that a comparison left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOutStrategy {
    /// The strategy.
    pub strategy: String,
    /// The number of ranks of the comparison.
    pub ranks: u32,
    /// Why the strategy does not take the configuration.
    pub why: String,
}

/// One bar of the timeline of a simulated step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelineSpan {
    /// The strategy, where several are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// The rank of the activity.
    pub rank: u32,
    /// `compute` or `communication`.
    pub stream: String,
    /// The name of the activity.
    pub name: String,
    /// When the activity starts, in virtual microseconds from the start of the step.
    pub start_us: f64,
    /// When the activity ends, in virtual microseconds from the start of the step.
    pub end_us: f64,
}

/// Whether two training runs on the same number of ranks gave the same bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    /// The model's name: `cnn`, ...
    pub model: String,
    /// Size of the group.
    pub ranks: u32,
    /// The number of compared steps.
    pub step: u64,
    /// Hash of the losses on threads.
    pub threads_losses: String,
    /// Hash of the losses on the simulator.
    pub sim_losses: String,
    /// Hash of the final weights on threads.
    pub threads_weights: String,
    /// Hash of the final weights on the simulator.
    pub sim_weights: String,
    /// Whether all compared values agree.
    pub ok: bool,
}

/// A published throughput, and the prediction from the same table's row of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalingRow {
    /// The name of the published table.
    pub run: String,
    /// The curve's name: its column and settings.
    pub curve: String,
    /// The machine, by a name that `--topology` takes.
    pub system: String,
    /// Whether the network classifies, detects or segments images.
    pub vision: bool,
    /// The number of GPUs.
    pub ranks: u32,
    /// Samples per second as published.
    pub published_samples_per_s: f64,
    /// Samples per second as predicted.
    pub predicted_samples_per_s: f64,
    /// |predicted / published - 1|.
    pub relative_error: f64,
    /// Whether the row took part in a fit; always false.
    pub fitted: bool,
    /// Assumptions about facts that the table does not give.
    pub assumed: Vec<String>,
}
