//! `validate` and `validation_score`: one prediction and the measured time; the error of many predictions.

use serde::{Deserialize, Serialize};

/// One row of a measured run, with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validated {
    /// The run's name.
    pub run: String,
    /// The name of the cluster.
    pub system: String,
    /// The number of nodes, as the run counts them.
    pub nodes: u32,
    /// The collective's name: `all_reduce`, ...
    pub collective: String,
    /// Size of the group.
    pub ranks: u32,
    /// The size in bytes, as nccl-tests counts it.
    pub bytes: u64,
    /// The algorithm and protocol that NCCL's tuner chooses: `Ring/LL`, ...
    pub nccl_choice: String,
    /// The predictor: `simulated`, `physical` or `closed-form`.
    pub predictor: String,
    /// The published time, in microseconds.
    pub measured_us: f64,
    /// The prediction, in microseconds.
    pub predicted_us: f64,
    /// max(predicted / measured, measured / predicted).
    pub error_factor: f64,
    /// Whether the run took part in the fit of the parameters; such rows are not scored.
    pub fitted: bool,
    /// The interval of the prediction; left out for predictors without a fit.
    #[serde(flatten)]
    pub interval: Option<TimeInterval>,
}

/// The ends of the intervals of a predicted time, in microseconds: on machines that were never measured, 80 and 95 % of times are inside.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeInterval {
    /// The lower end of the 80 % interval.
    pub low_us: f64,
    /// The upper end of the 80 % interval.
    pub high_us: f64,
    /// The lower end of the 95 % interval.
    pub low95_us: f64,
    /// The upper end of the 95 % interval.
    pub high95_us: f64,
}

/// The error of predictions of collectives on systems that took no part in the fit, for one band of sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationScore {
    /// `simulated`, `physical` or `closed-form`.
    pub predictor: String,
    /// The band of sizes: `< 64 KiB`, ...
    pub band: String,
    /// The largest number of nodes of a run in the score.
    pub most_nodes: u32,
    /// Number of rows of published runs.
    pub rows: u64,
    /// Number of systems that these rows come from.
    pub systems: u64,
    /// Median of max(predicted / measured, measured / predicted).
    pub median_factor: f64,
    /// 90th percentile of the same factor.
    pub ninetieth_factor: f64,
    /// The document that publishes the score.
    pub source: String,
}

/// The error of predicted training rates of several GPUs, each from the published rate of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingScore {
    /// What was predicted, in the plural: `image networks`.
    pub networks: String,
    /// The number of GPUs that were predicted.
    pub ranks: u32,
    /// Number of published rates.
    pub rows: u64,
    /// Median of the relative errors.
    pub median_error: f64,
    /// 90th percentile of the relative errors.
    pub ninetieth_error: f64,
    /// The document that publishes the score.
    pub source: String,
}

/// One published row of training speed, with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidatedTraining {
    /// The name of the cluster.
    pub system: String,
    /// The model's name, as the source writes it.
    pub model: String,
    /// The number of GPUs.
    pub gpus: u32,
    /// The name of the file of rows, without its ending.
    pub run: String,
    /// The row's place in the file, from 0.
    pub row: u64,
    /// The framework that the row was understood to use.
    pub framework: String,
    /// Whether the model has experts.
    pub mixture: bool,
    /// Seconds of a step, as measured; `None` where nothing was measured.
    pub measured_step_s: Option<f64>,
    /// Predicted seconds of a step; `None` where nothing was measured.
    pub predicted_step_s: Option<f64>,
    /// The ends of the 80 % interval, in seconds.
    pub low_s: Option<f64>,
    /// See `low_s`.
    pub high_s: Option<f64>,
    /// The ends of the 95 % interval, in seconds.
    pub low95_s: Option<f64>,
    /// See `low95_s`.
    pub high95_s: Option<f64>,
    /// Memory of a GPU in GB (1e9 bytes), as the source reads it.
    pub memory_gb: Option<f64>,
    /// Predicted memory of the fullest GPU in GB.
    pub predicted_memory_gb: f64,
    /// Whether the job is predicted to fit.
    pub fits: bool,
    /// The probability of that.
    pub fit_probability: f64,
    /// Whether the job ran out of memory; `None` if the source does not say.
    pub out_of_memory: Option<bool>,
    /// What the prediction knew of the system: nothing (`spec`), or one of its rows (`system`).
    pub fit: String,
    /// Whether this is the row that the prediction knew; it is not scored.
    pub known: bool,
    /// Whether the collector of the row doubts it; it is not scored.
    pub suspect: bool,
}
