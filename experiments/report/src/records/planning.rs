//! `plan` and `plan_run`: a layout of a large model's training with its predictions; the run as a whole.

use serde::{Deserialize, Serialize};

/// One layout, predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedLayout {
    /// The model's name.
    pub model: String,
    /// The GPU's name.
    pub gpu: String,
    /// The number of GPUs.
    pub gpus: u32,
    /// The place by predicted time; 1 is the fastest.
    pub place: u32,
    /// The layout in words: `tp 4, pp 2, dp 64, zero1, micro-batch 1`.
    pub layout: String,
    /// Sequences of a step.
    pub global_batch: u32,
    /// Tokens of a sequence.
    pub sequence: u32,
    /// Seconds of a step.
    pub step_s: f64,
    /// The lower end of the 80 % interval, in seconds.
    pub low_s: f64,
    /// The upper end of the 80 % interval, in seconds.
    pub high_s: f64,
    /// Tokens of all GPUs in a second.
    pub tokens_per_s: f64,
    /// The share of the GPUs' peak that goes into the model's products.
    pub mfu: f64,
    /// Memory of the fullest GPU in GB (1e9 bytes).
    pub memory_gb: f64,
    /// The odds that it fits.
    pub fit_probability: f64,
    /// The odds that this layout is faster than the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_next: Option<f64>,
    /// The parts of the step: name and seconds. Exchanges count as far as nothing hides them.
    pub parts: Vec<(String, f64)>,
    /// The memory by class: name and GB.
    pub memory: Vec<(String, f64)>,
}

/// The run that a plan is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlannedRun {
    /// The model's name.
    pub model: String,
    /// The GPU's name.
    pub gpu: String,
    /// The number of GPUs.
    pub gpus: u32,
    /// Layouts that were looked at.
    pub tried: u32,
    /// Layouts that fit.
    pub fitting: u32,
    /// Why the others were left out, with their number.
    pub left_out: Vec<(String, u32)>,
    /// What a change brings: the change, tokens a second then over now, the fastest layout then.
    pub changes: Vec<(String, f64, String)>,
    /// The measurement that narrows the 80 % interval of the first layout most: layout, GPUs, half of the interval before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<(String, u32, f64, f64)>,
    /// Tokens of the run; the other figures of the run are 0 without `--tokens` and `--days`.
    pub tokens: f64,
    /// Days of the run, failures included: expected, and the 80 % interval.
    pub days: [f64; 3],
    /// The share of the time that trains: expected, and the 80 % interval.
    pub goodput: [f64; 3],
    /// Interruptions.
    pub interruptions: f64,
    /// Seconds between checkpoints: the best interval, Young's and Daly's.
    pub checkpoints_s: [f64; 3],
    /// The cost with its currency: `1.2e6 USD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<(f64, String)>,
    /// Energy in MWh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mwh: Option<f64>,
}
