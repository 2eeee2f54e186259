//! Where the time of a simulated collective went.

use super::lines::RecordKind;
use serde::{Deserialize, Serialize};

/// The parts of one simulated time, and whom and what it waited for most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeSpent {
    /// What was called.
    pub collective: String,
    /// By which algorithm.
    pub algorithm: String,
    /// On which machine.
    pub topology: String,
    /// Over how many ranks.
    pub ranks: u32,
    /// Size of the call.
    pub bytes: u64,
    /// The whole time, in microseconds.
    pub time_us: f64,
    /// Its parts along the messages that wait for each other: name and microseconds.
    pub parts: Vec<(String, f64)>,
    /// The way that was waited for longest, from rank to rank, in microseconds.
    pub longest_wait: Option<(u32, u32, f64)>,
    /// The busiest link and the share of what it could carry that it did.
    pub busiest_link: Option<(String, f64)>,
}

impl RecordKind for TimeSpent {
    const KIND: &'static str = "time_spent";
    const MEASURED: Option<bool> = Some(false);
}
