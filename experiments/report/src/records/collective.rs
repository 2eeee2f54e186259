//! `collective`: one size of one collective, measured on a backend or timed by the simulator.

use serde::{Deserialize, Serialize};

/// The call: what a measurement and a prediction of the same collective have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectiveCall {
    /// The collective's name: `all_reduce`, ...
    pub collective: String,
    /// The algorithm's name: `ring`, ...
    pub algorithm: String,
    /// Size of the group.
    pub ranks: u32,
    /// The element type: `f32`, ...
    pub dtype: String,
    /// The reduction operator: `sum`, ...; left out where nothing is reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The root rank; left out where the collective has no root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// Elements that a rank contributes: the whole buffer, or one block if the buffer has a block per rank.
    pub count: u64,
    /// Bytes of the larger of a rank's two buffers, nccl-tests' "size".
    pub bytes: u64,
    /// Hash of the reduction trees: two results with the same tree, inputs and type are the same bits. Left out where nothing is
    /// reduced or the trees were not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_hash: Option<String>,
    /// `canonical`, `uniform` or `positional`; left out if `tree_hash` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_class: Option<String>,
}

/// A collective timed by a real clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCollective {
    /// The backend: `threads`, `shm`, `tcp`, `mpi`, `device`, `nccl`.
    pub backend: String,
    /// The device of each rank: `cpu`, or the GPU's name.
    pub device: String,
    /// How ranks executed the call, if the backend has a choice: `fused`, `messages`, ..
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The call that was measured.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// Whether the result replaced the input in its buffer.
    pub in_place: bool,
    /// Number of timed calls that were requested; calls of small sizes and calls by NCCL are timed in groups.
    pub iterations: u32,
    /// Mean time of a call in microseconds, over ranks and iterations.
    pub time_us: f64,
    /// Standard error of `time_us`, over iterations.
    pub time_error_us: f64,
    /// bytes / time, in GB/s (1e9).
    pub algbw_gbps: f64,
    /// algbw times nccl-tests' factor for the collective.
    pub busbw_gbps: f64,
    /// NCCL's own estimate for the call, in microseconds; only with NCCL's collectives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl_estimate_us: Option<f64>,
    /// Elements that differ from the exact reference, over all ranks; left out where nothing was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong_elements: Option<u64>,
    /// Hash of all ranks' results; left out where nothing was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

/// A collective timed by the virtual clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SimulatedCollective {
    /// The backend; always `sim`.
    pub backend: String,
    /// The call that was simulated.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// The machine that was simulated.
    pub topology: String,
    /// How the time was computed: `clocks` (a clock per rank), `events` (in order of time), either with `_by_symmetry` (one rank
    /// per symmetry class), `serial_links` (links serve one message at a time), `closed_form` (NCCL's calls without a schedule);
    /// `real_data` where ranks exchanged real data.
    pub engine: String,
    /// How messages share a link: `max_min`, `split`, or `serial_links` (one message at a time).
    pub sharing: String,
    /// Steps that a rank may have in flight.
    pub window: u32,
    /// Bytes of the largest segment; left out where chunks are not cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u64>,
    /// The fault rules that were injected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Virtual microseconds until the last rank is done.
    pub time_us: f64,
    /// The interval of the time, where it is a fitted model's.
    #[serde(flatten)]
    pub interval: Option<super::TimeInterval>,
    /// The greatest of three lower bounds: the busiest link's bytes over its bandwidth, the longest chain of messages without their
    /// bytes, and what any algorithm needs. Left out where none was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_us: Option<f64>,
    /// bytes / time, in GB/s (1e9).
    pub algbw_gbps: f64,
    /// algbw times nccl-tests' factor for the collective.
    pub busbw_gbps: f64,
    /// Number of lanes (channels) that ran side by side; left out for one lane, or where NCCL's model chose the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u32>,
    /// Messages that were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<u64>,
    /// Whether chunks were rounded up to equal sizes, so that the times are those of a slightly larger call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rounded_up: bool,
    /// How many equal lanes each simulated lane stands for; left out where every lane was simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged_lanes: Option<u32>,
    /// How many ranks of a symmetry class each simulated rank stands for; left out where every rank was simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_per_class: Option<u32>,
    /// Messages that were not simulated because they repeat earlier ones, which changes no time; left out where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_messages: Option<u64>,
    /// Elements that differ from the exact reference; left out where no data was carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong_elements: Option<u64>,
    /// Hash of all ranks' results; left out where no data was carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

impl SimulatedCollective {
    /// The engine, and what it did not simulate: `serial_links, 16 lanes merged, 82.1 % skipped`.
    pub fn stepped(&self) -> String {
        let lanes = self.merged_lanes.map(|lanes| format!("{lanes} lanes merged"));
        let ranks = self.ranks_per_class.map(|ranks| format!("{ranks} ranks per class"));
        let share = |skipped: u64| skipped as f64 / self.messages.unwrap_or(skipped).max(1) as f64;
        let skipped = self.skipped_messages.map(|skipped| format!("{:.1} % skipped", share(skipped) * 100.0));
        let parts = [Some(self.engine.clone()), lanes, ranks, skipped];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}
