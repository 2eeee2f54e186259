//! `collective`: one size of one collective, measured on a backend or timed by the simulator.

use super::lines::RecordKind;
use serde::{Deserialize, Serialize};

/// The call: what a measurement and a prediction of the same collective have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveCall {
    /// `all_reduce`, ...
    pub collective: String,
    /// `ring`, ...
    pub algorithm: String,
    /// Size of the group.
    pub ranks: u32,
    /// `f32`, ...
    pub dtype: String,
    /// `sum`, ...; left out where nothing is reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// Left out where no rank is special.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// Elements that a rank contributes: of the whole buffer, or of one block where there is one per rank.
    pub count: u64,
    /// Bytes of the larger of a rank's two buffers, nccl-tests' "size".
    pub bytes: u64,
    /// Hash of the reduction trees: two results with the same tree, inputs and type are the same bits. Left out
    /// where it was not worked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_hash: Option<String>,
    /// `canonical`, `uniform` or `positional`; left out as the tree is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_class: Option<String>,
}

/// A collective timed by a real clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCollective {
    /// The backend: `threads`, `shm`, `tcp`, `mpi`, `device`, `nccl`.
    pub backend: String,
    /// What each rank computes on: `cpu`, or the GPU's name.
    pub device: String,
    /// How ranks executed the call, if the backend has a choice: `fused`, `messages`, ..
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The collective.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// Whether the result replaced the input in its buffer.
    pub in_place: bool,
    /// Number of timed calls.
    pub iterations: u32,
    /// Mean time of a call in microseconds, over ranks and iterations.
    pub time_us: f64,
    /// Standard error of that mean, over iterations.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulatedCollective {
    /// Always `sim`.
    pub backend: String,
    /// The collective.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// The machine that was simulated.
    pub topology: String,
    /// How the time was computed: `clocks` (a clock for each rank), `events` (in order of time), either with `_by_symmetry` (one rank of
    /// each kind), or `serial_links` (links that serve one message at a time); `closed_form` of NCCL's calls without a schedule;
    /// `real_data` where ranks exchanged real data.
    pub engine: String,
    /// `max_min`, `split`, or `serial_links` where links serve one message at a time.
    pub sharing: String,
    /// Steps that a rank may have in flight.
    pub window: u32,
    /// Largest piece in bytes; left out where chunks are not cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u64>,
    /// Faults that were injected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Virtual microseconds until the last rank is done.
    pub time_us: f64,
    /// The larger of the bandwidth bound and the latency bound: no such schedule can be faster on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_us: Option<f64>,
    /// bytes / time, in GB/s (1e9).
    pub algbw_gbps: f64,
    /// algbw times nccl-tests' factor for the collective.
    pub busbw_gbps: f64,
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
    /// Messages that repeat earlier ones and were not simulated, without error; left out where there are none.
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

impl RecordKind for MeasuredCollective {
    const KIND: &'static str = "collective";
    const MEASURED: Option<bool> = Some(true);
}

impl RecordKind for SimulatedCollective {
    const KIND: &'static str = "collective";
    const MEASURED: Option<bool> = Some(false);
}
