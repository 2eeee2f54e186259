//! `limit`, `simulator` and `doctor`: what the machine itself can do.

use serde::{Deserialize, Serialize};

/// The memory bandwidth of this machine, measured in the same run as the collectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The number of threads that ran at once.
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
    /// The collective's name: `all_reduce`, ...
    pub collective: String,
    /// The algorithm's name: `ring`, ...
    pub algorithm: String,
    /// The number of simulated ranks.
    pub ranks: u32,
    /// The number of timed messages.
    pub messages: u64,
    /// The real time of the simulation, in seconds.
    pub wall_s: f64,
    /// Messages per real second.
    pub messages_per_s: f64,
}

/// One item that `doctor` looked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DoctorFinding {
    /// The name of the item: `cpu`, `memory`, `cuda`, ...
    pub item: String,
    /// Whether the item was found.
    pub found: bool,
    /// What was found, or why the item was not found.
    pub detail: String,
    /// For a missing item: how to get it, and what works without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// The machine that a run was made on, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuringMachine {
    /// The date and time in UTC: `2026-01-31 09:05 UTC`.
    pub date: String,
    /// The processor's name.
    pub processor: String,
    /// The cores that the run could use.
    pub cores: u32,
    /// Bytes of main memory; left out where they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes that wanted to run, as the mean over the minute before the run; left out where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// The names of the machine's NVIDIA GPUs, whether or not the run could use them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
}

/// A machine that `--topology` takes by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineListed {
    /// The machine's name.
    pub name: String,
    /// A description of the machine in words.
    pub title: String,
    /// The machine's GPU.
    pub gpu: String,
    /// The number of GPUs of a node.
    pub gpus_per_node: u32,
    /// The number of NICs of a node.
    pub nics_per_node: u32,
    /// The bandwidth of each NIC in Gb/s.
    pub nic_gbit_per_s: f64,
    /// The kind of network, such as InfiniBand.
    pub fabric: String,
    /// The sources of its figures.
    pub sources: Vec<String>,
}
