//! Where the time of a simulated collective is spent.

use serde::{Deserialize, Serialize};

/// The parts of one simulated time, the longest wait and the busiest link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeSpent {
    /// The collective's name.
    pub collective: String,
    /// The algorithm's name.
    pub algorithm: String,
    /// The simulated machine.
    pub topology: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Size of the call.
    pub bytes: u64,
    /// The whole time, in microseconds.
    pub time_us: f64,
    /// The parts of the time along the critical path: name and microseconds.
    pub parts: Vec<(String, f64)>,
    /// The sender, the receiver and the time of the longest wait, in microseconds.
    pub longest_wait: Option<(u32, u32, f64)>,
    /// The busiest link, and the share of its capacity that was used.
    pub busiest_link: Option<(String, f64)>,
}
