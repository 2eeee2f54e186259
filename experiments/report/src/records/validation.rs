//! `validate`: one prediction and the measured time.

use super::lines::RecordKind;
use serde::{Deserialize, Serialize};

/// One row of one run, predicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validated {
    /// The run's name.
    pub run: String,
    /// The cluster.
    pub system: String,
    /// Nodes, as the run counts them.
    pub nodes: u32,
    /// `all_reduce`, ...
    pub collective: String,
    /// Size of the group.
    pub ranks: u32,
    /// nccl-tests' size.
    pub bytes: u64,
    /// The algorithm and protocol that NCCL's tuner chooses: `Ring/LL`, ...
    pub nccl_choice: String,
    /// `simulated`, `physical` or `closed-form`.
    pub predictor: String,
    /// The published time, in microseconds.
    pub measured_us: f64,
    /// The prediction, in microseconds.
    pub predicted_us: f64,
    /// max(predicted / measured, measured / predicted).
    pub error_factor: f64,
    /// Whether the run took part in the fit of the parameters; such rows are not scored.
    pub fitted: bool,
}

impl RecordKind for Validated {
    const KIND: &'static str = "validate";
    const MEASURED: Option<bool> = Some(false);
}
