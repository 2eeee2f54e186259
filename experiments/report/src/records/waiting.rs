//! For whom ranks wait.

use serde::{Deserialize, Serialize};

/// How long a rank waits in operations that another one has not entered yet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitingFor {
    /// The rank that waits.
    pub rank: u32,
    /// The rank that it waits for.
    pub of: u32,
    /// The time, in microseconds.
    pub us: f64,
}

/// The rank that the others wait for the longest, and the share of their waiting: `rank 2 (63 %)`. `-` if nobody waits for a rank.
pub fn awaited_most(waiting_for: &[WaitingFor], waiting_us: &[f64]) -> String {
    let of = |rank: u32| waiting_for.iter().filter(|pair| pair.of == rank).map(|pair| pair.us).sum::<f64>();
    let ranks = waiting_for.iter().map(|pair| pair.of);
    let all: f64 = waiting_us.iter().sum();
    let share = |rank: &u32| 100.0 * (of(*rank) / all).min(1.0);
    match ranks.max_by(|a, b| of(*a).total_cmp(&of(*b))).filter(|rank| share(rank) >= 0.5) {
        Some(rank) => format!("rank {rank} ({:.0} %)", share(&rank)),
        None => "-".into(),
    }
}
