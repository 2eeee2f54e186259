//! `limit`, `simulator` and `doctor`: what the machine itself can do.

use super::lines::RecordKind;
use serde::{Deserialize, Serialize};

/// The memory bandwidth of this machine, measured in the same run as the collectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// How many threads ran at once.
    pub threads: u32,
    /// Bytes of each thread's buffers.
    pub bytes: u64,
    /// Bytes copied per second over all threads, in GB/s (1e9); each is read once and written once.
    pub copy_gbps: f64,
    /// Bytes of `a` in `a += b` (f32) per second over all threads, in GB/s; each is read twice and written once.
    pub reduce_gbps: f64,
    /// Bytes of one rank's buffer per second in an all-reduce (f32) of ranks that share memory, in GB/s, by the same
    /// loops without any waiting; left out if no all-reduce ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fused_gbps: Option<f64>,
}

/// The speed of the simulator itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulatorSpeed {
    /// The engine, by its name in a simulated collective's record: `clocks`, `events_by_symmetry`, ...
    pub engine: String,
    /// `all_reduce`, ...
    pub collective: String,
    /// `ring`, ...
    pub algorithm: String,
    /// Ranks that were simulated.
    pub ranks: u32,
    /// Messages that were timed.
    pub messages: u64,
    /// Real seconds that it took.
    pub wall_s: f64,
    /// Messages per real second.
    pub messages_per_s: f64,
}

/// One item that `doctor` looked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DoctorFinding {
    /// `cpu`, `memory`, `cuda`, ...
    pub item: String,
    /// Whether it was found.
    pub found: bool,
    /// The finding.
    pub detail: String,
    /// If it is missing: how to get it, and what works without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl RecordKind for Limit {
    const KIND: &'static str = "limit";
    const MEASURED: Option<bool> = Some(true);
}

impl RecordKind for SimulatorSpeed {
    const KIND: &'static str = "simulator";
    const MEASURED: Option<bool> = Some(true);
}

impl RecordKind for DoctorFinding {
    const KIND: &'static str = "doctor";
    const MEASURED: Option<bool> = None;
}

/// A machine that `--topology` knows by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineListed {
    /// The machine's name.
    pub name: String,
    /// A description.
    pub title: String,
    /// The machine's GPU.
    pub gpu: String,
    /// GPUs of a node.
    pub gpus_per_node: u32,
    /// NICs of a node.
    pub nics_per_node: u32,
    /// Gb/s of each.
    pub nic_gbit_per_s: f64,
    /// The kind of network, such as InfiniBand.
    pub fabric: String,
    /// The sources of its figures.
    pub sources: Vec<String>,
}

impl RecordKind for MachineListed {
    const KIND: &'static str = "machine";
    const MEASURED: Option<bool> = None;
}
