//! `train`, `scale`, `span` and `parity`: training runs, scaling curves and the timeline of a step.

use super::lines::RecordKind;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// How a training run is set up: what a measurement and a prediction of the same run have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The backend: `threads`, `tcp`, `mpi` (measured); `sim` with real arithmetic, `modeled` with shapes alone.
    pub backend: String,
    /// What each rank computes on: `cpu`, or the GPU's name; of a simulated run the device model.
    pub device: String,
    /// The model: `cnn`, ...
    pub model: String,
    /// `single`, `ddp`.
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

    /// A mesh of replicas alone.
    pub fn data_parallel(ranks: u32) -> BTreeMap<String, u32> {
        BTreeMap::from([("data".to_string(), ranks)])
    }
}

/// Where the time of a step goes, in microseconds per step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Getting the batch.
    pub data_us: f64,
    /// Forward pass and loss.
    pub forward_us: f64,
    /// Backward pass.
    pub backward_us: f64,
    /// Waiting for communication that the backward pass did not hide.
    pub exposed_us: f64,
    /// The optimiser.
    pub optimiser_us: f64,
}

/// Bytes that a rank holds, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// Parameters.
    pub params: u64,
    /// Gradients, those held back between micro-batches included.
    pub gradients: u64,
    /// Running statistics.
    pub buffers: u64,
    /// Activations.
    pub activations: u64,
    /// Values that layers save for their backward pass.
    pub saved_for_backward: u64,
    /// Gradients of the loss by the activations.
    pub activation_gradients: u64,
    /// The optimiser's state.
    pub optimiser: u64,
    /// Bucket buffers that are no views of the gradients, and the state of their hook.
    pub buckets: u64,
}

/// The times of a bucket of gradients, in microseconds from the start of its step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketLife {
    /// The bucket's position in the order of sending.
    pub bucket: usize,
    /// Parameters in it.
    pub params: usize,
    /// Bytes in it.
    pub bytes: u64,
    /// When the bucket's last gradient was computed.
    pub ready_us: f64,
    /// When it was sent: after it was ready and after the previous bucket was sent.
    pub sent_us: f64,
    /// When the bucket's sum had arrived.
    pub done_us: f64,
}

/// JSON has no NaN and no infinity: they are written as null, and read as NaN.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

macro_rules! pair {
    ($(#[$doc:meta])* $measured:ident, $simulated:ident $(, $kind:literal)?, { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        /// Timed by a real clock.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $measured { $($(#[$field_doc])* pub $field: $type,)* }

        $(#[$doc])*
        /// Timed by the virtual clock.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $simulated { $($(#[$field_doc])* pub $field: $type,)* }

        $(impl RecordKind for $measured {
            const KIND: &'static str = $kind;
            const MEASURED: Option<bool> = Some(true);
        }

        impl RecordKind for $simulated {
            const KIND: &'static str = $kind;
            const MEASURED: Option<bool> = Some(false);
        })?
    };
}

macro_rules! step {
    ($(#[$doc:meta])* $step:ident, $end:ident, $measured:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $step {
            /// The setup of the run.
            #[serde(flatten)]
            pub setup: Setup,
            /// Number of the step, from 0.
            pub step: u64,
            /// Mean loss of the step's batch over all ranks, exact to the last bit; null where it is no number.
            #[serde(deserialize_with = "number")]
            pub loss: f64,
            /// The buckets that rank 0 sent; only of the traced step, or of the last.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub buckets: Vec<BucketLife>,
            /// How the run ended; only of the last step.
            #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
            pub end: Option<$end>,
        }

        impl RecordKind for $step {
            const KIND: &'static str = "train";
            const MEASURED: Option<bool> = Some($measured);
        }
    };
}

step! {
    /// One step of a training run on real time; the last one also carries how the run ended.
    MeasuredStep, MeasuredEnd, true
}
step! {
    /// One step of a training run on virtual time; the last one also carries how the run ended.
    SimulatedStep, SimulatedEnd, false
}

pair! {
    /// How a training run ended.
    MeasuredEnd, SimulatedEnd, {
        /// Share of the test set that is classified right.
        accuracy: f64,
        /// Training samples per second, over all ranks, in the steps after those that warm up.
        samples_per_s: f64,
        /// Samples per second by the median step of the slowest rank, after the first third of the steps. Only for runs on
        /// GPUs, whose first steps compile kernels, search for the fastest algorithms and capture graphs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steady_samples_per_s: Option<f64>,
        /// Warm-up steps, which are not timed: they compile, allocate and fill caches.
        warmup_steps: u64,
        /// Mean time of a step, in microseconds.
        time_us: f64,
        /// Where the time of a step goes.
        #[serde(flatten)]
        breakdown: Breakdown,
        /// Bytes that rank 0 held after the last step, by category.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<RankMemory>,
        /// Hash of every loss of the run, bit for bit.
        losses_hash: String,
        /// Hash of the final weights, bit for bit.
        weights_hash: String,
    }
}

pair! {
    /// One point of a scaling curve.
    MeasuredScale, SimulatedScale, "scale", {
        /// The setup of the run.
        #[serde(flatten)]
        setup: Setup,
        /// Samples per rank and step.
        batch: u64,
        /// The machine: this one's cores, or the topology and device that were simulated.
        topology: String,
        /// Mean time of a step after those that warm up, in microseconds.
        time_us: f64,
        /// Standard error of that mean; 0 where there is none.
        time_error_us: f64,
        /// Waiting for communication that the backward pass did not hide, in microseconds.
        exposed_us: f64,
        /// Training samples per second, over all ranks, in the same steps.
        samples_per_s: f64,
        /// samples_per_s / (ranks x samples_per_s of one rank).
        efficiency: f64,
        /// How exchanges were timed where they were modeled: which engine, and whether chunks were rounded up.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        engines: Vec<String>,
    }
}

pair! {
    /// One strategy of a comparison, on the same samples as all others.
    MeasuredComparison, SimulatedComparison, "compare", {
        /// The setup of the run.
        #[serde(flatten)]
        setup: Setup,
        /// Samples of all ranks together in a step.
        batch: u64,
        /// Micro-batches that a rank cuts its samples of a step into.
        micro_batches: u64,
        /// The machine: this one's cores, or the topology and device that were simulated.
        topology: String,
        /// Time of a step: the median over the steps after those that warm up, in microseconds.
        step_us: f64,
        /// Where the time of a step goes, as the mean over all ranks.
        #[serde(flatten)]
        breakdown: Breakdown,
        /// Time that each rank waits for others in a step, in microseconds, by rank.
        waiting_us: Vec<f64>,
        /// Bytes that each rank sends in a step, by rank. Counted on the simulator alone.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        bytes_sent: Vec<u64>,
        /// Bytes that all ranks send in a step, by operation. Counted on the simulator alone.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        bytes_by_operation: BTreeMap<String, u64>,
        /// Bytes that each rank holds when it holds the most, by rank.
        peak_bytes: Vec<u64>,
        /// Those bytes by class, of the rank that holds the most.
        memory: RankMemory,
        /// Mean loss of the last step's samples, exact to the last bit; null where it is no number.
        #[serde(deserialize_with = "number")]
        loss: f64,
        /// Hash of the final weights, bit for bit.
        weights_hash: String,
    }
}

/// One bar of the timeline of a simulated step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelineSpan {
    /// The strategy, where several are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// The rank.
    pub rank: u32,
    /// `compute` or `communication`.
    pub stream: String,
    /// The activity.
    pub name: String,
    /// Virtual microseconds from the start of the step.
    pub start_us: f64,
    /// Virtual microseconds from the start of the step.
    pub end_us: f64,
}

impl RecordKind for TimelineSpan {
    const KIND: &'static str = "span";
    const MEASURED: Option<bool> = Some(false);
}

/// Whether two training runs on the same number of ranks gave the same bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    /// The model: `cnn`, ...
    pub model: String,
    /// Size of the group.
    pub ranks: u32,
    /// Steps that were compared.
    pub step: u64,
    /// Hash of the losses on threads.
    pub threads_losses: String,
    /// Hash of the losses on the simulator.
    pub sim_losses: String,
    /// Hash of the final weights on threads.
    pub threads_weights: String,
    /// Hash of the final weights on the simulator.
    pub sim_weights: String,
    /// Whether all of it agrees.
    pub ok: bool,
}

impl RecordKind for Parity {
    const KIND: &'static str = "parity";
    const MEASURED: Option<bool> = None;
}

/// A published throughput, and the prediction from the same table's row of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalingRow {
    /// The table.
    pub run: String,
    /// The curve's name: its column and settings.
    pub curve: String,
    /// The machine, by a name that `--topology` knows.
    pub system: String,
    /// Classification, detection or segmentation of images.
    pub vision: bool,
    /// GPUs.
    pub ranks: u32,
    /// Samples per second as published.
    pub published_samples_per_s: f64,
    /// Samples per second as predicted.
    pub predicted_samples_per_s: f64,
    /// |predicted / published - 1|.
    pub relative_error: f64,
    /// Whether the row took part in a fit; always false.
    pub fitted: bool,
    /// Assumptions about what the table does not say.
    pub assumed: Vec<String>,
}

impl RecordKind for ScalingRow {
    const KIND: &'static str = "validate_scaling";
    const MEASURED: Option<bool> = None;
}
