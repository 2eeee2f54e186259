//! `faults`: the outcome of seeded fault schedules.

use serde::{Deserialize, Serialize};

/// Counts over a range of fault schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSchedules {
    /// Number of fault schedules.
    pub schedules: u64,
    /// The number of faults that the schedules injected.
    pub faults: u64,
    /// Fault schedules in which a rank ended with an error, and every error names the culprit.
    pub attributed: u64,
    /// Fault schedules that did not end.
    pub hangs: u64,
    /// Fault schedules with a wrong result.
    pub wrong_results: u64,
    /// Fault schedules with an error that names no culprit or a wrong one.
    pub misattributed: u64,
}
