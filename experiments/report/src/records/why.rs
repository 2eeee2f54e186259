//! `why`: a cause for which a measured run is slow, with its probability.

use serde::{Deserialize, Serialize};

/// A cause for which a run is slow, or `healthy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowRunCause {
    /// The run's name.
    pub run: String,
    /// The collective's name: `all_reduce`, ...
    pub collective: String,
    /// Size of the group.
    pub ranks: u32,
    /// The cause in its most likely degree.
    pub cause: String,
    /// The probability of the cause; those of a run add up to 1.
    pub probability: f64,
    /// The smallest size in bytes whose time by this cause is outside of the 80 % interval of a healthy run; `None` if no size's is.
    pub telling_from: Option<u64>,
    /// The largest such size.
    pub telling_to: Option<u64>,
    /// Geometric mean of measured time / time by this cause.
    pub measured_to_predicted: f64,
    /// What a setting or a log says for the cause or against it.
    pub evidence: Option<String>,
    /// The number of sizes of the run.
    pub sizes: u64,
    /// The number of sizes that are slower than the 80 % interval of a healthy run.
    pub slower_sizes: u64,
}
