//! `faults`: what became of seeded fault schedules.

use super::lines::RecordKind;
use serde::{Deserialize, Serialize};

/// The sum over a range of schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSchedules {
    /// How many.
    pub schedules: u64,
    /// Faults in them.
    pub faults: u64,
    /// In which some rank was told who is to blame.
    pub attributed: u64,
    /// That did not end.
    pub hangs: u64,
    /// With a wrong result.
    pub wrong_results: u64,
    /// With an error that names nobody, or somebody else.
    pub misattributed: u64,
}

impl RecordKind for FaultSchedules {
    const KIND: &'static str = "faults";
    const MEASURED: Option<bool> = None;
}
