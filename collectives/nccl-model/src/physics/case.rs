//! One call on one machine, with NCCL's choice: all inputs of the physical model except its fitted parameters.

use super::super::{Graph, NcclAlgorithm, NoChoice, Overrides, Platform, Protocol, choose, estimate};
use allfold_schedules::Collective;
use allfold_sim::machines::{Fabric, Generation, Machine};

/// A machine with the settings of a run on it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The machine's hardware.
    pub machine: Machine,
    /// The machine as NCCL's tuner sees it.
    pub platform: Platform,
    /// The environment's restrictions on the tuner's choice.
    pub overrides: Overrides,
    /// The number of GPUs that one process drives.
    pub driven: u32,
    /// If the host, not the NIC, matches messages to buffers: the size in bytes of the largest message that the host stores in GPU
    /// memory without a call of the driver; otherwise `None`.
    pub host_stores: Option<f64>,
}

/// The machine of a call: all that the model reads of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallMachine {
    /// The boost clock of the GPUs in GHz.
    pub clock: f64,
    /// The generation of the GPUs.
    pub generation: Generation,
    /// Whether the GPUs of a node communicate over NVLink.
    pub nvlink: bool,
    /// Whether switches connect the GPUs of a node.
    pub switched: bool,
    /// The nominal bandwidth out of a GPU, in GB/s.
    pub port: f64,
    /// The nominal bandwidth out of a node over all its NICs, in GB/s; 0 for a single node.
    pub network: f64,
    /// The number of NICs of a node.
    pub nics: f64,
    /// The protocol that the NICs speak.
    pub fabric: Fabric,
    /// Whether the NICs access GPU memory directly.
    pub direct: bool,
    /// Whether GPUs of a node write into each other's memory.
    pub peer: bool,
    /// The number of GPUs that share one PCIe link to the host.
    pub sharing_uplink: f64,
    /// The bandwidth of a tree's channel in NCCL's tuner, in GB/s.
    pub tree: f64,
    /// The number of GPUs that one process drives.
    pub driven: f64,
    /// If the host matches messages to buffers: the size in bytes of the largest message that the host stores in GPU memory without
    /// a call of the driver; otherwise `None`.
    pub host_stores: Option<f64>,
}

/// A call with NCCL's choice, as the physical model needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhysicsCase {
    /// The collective that is called.
    pub collective: Collective,
    /// The algorithm that NCCL chooses.
    pub algorithm: NcclAlgorithm,
    /// The protocol that NCCL chooses.
    pub protocol: Protocol,
    /// The size of the call in bytes, as nccl-tests counts it.
    pub bytes: f64,
    /// The number of all ranks.
    pub ranks: f64,
    /// The number of groups of GPUs that share NVLink or PCIe.
    pub nodes: f64,
    /// The number of ranks of one node.
    pub devices: f64,
    /// The machine that runs the call.
    pub machine: CallMachine,
    /// The number of channels that NCCL's graph search finds.
    pub channels: f64,
    /// The number of channels that NCCL launches for large calls.
    pub running: f64,
    /// The number of channels that NCCL launches for a call of this size.
    pub used: f64,
    /// The base latency in NCCL's tuner, in microseconds.
    pub base: f64,
    /// The latency of a step within a node in NCCL's tuner, in microseconds.
    pub step: f64,
    /// Whether the call adds numbers of one byte.
    pub adds_bytes: bool,
    /// Whether this call has the first size that the run measured.
    pub first: bool,
    /// The tuner's own estimate, in microseconds; NaN if the algorithm and protocol cannot run the call.
    pub tuner_us: f64,
}

/// The largest message in bytes that goes by LL in a group of sends and receives.
const P2P_LL: u64 = 16_384;

impl Setting {
    /// A call with NCCL's choice of algorithm and protocol.
    ///
    /// # Errors
    /// The overrides leave no candidate.
    pub fn case(&self, collective: Collective, bytes: u64, first: bool) -> Result<PhysicsCase, NoChoice> {
        if collective == Collective::AllToAll {
            // Sends and receives in one group: LL up to 16 KiB for a rank (NCCL_P2P_LL_THRESHOLD of `src/enqueue.cc`).
            let each = bytes / u64::from(self.platform.ranks.max(1));
            let protocol = if each <= P2P_LL { Protocol::Ll } else { Protocol::Simple };
            return Ok(self.with(collective, bytes, first, NcclAlgorithm::Ring, protocol));
        }
        let chosen = choose(&self.platform, collective, bytes, &self.overrides)?;
        Ok(self.with(collective, bytes, first, chosen.algorithm, chosen.protocol))
    }

    /// A call with this algorithm and protocol in place of NCCL's choice.
    pub fn with(
        &self,
        collective: Collective,
        bytes: u64,
        first: bool,
        algorithm: NcclAlgorithm,
        protocol: Protocol,
    ) -> PhysicsCase {
        let platform = &self.platform;
        let graph = match algorithm {
            NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => platform.nvls.unwrap_or(platform.ring),
            NcclAlgorithm::Tree => platform.tree,
            _ => platform.ring,
        };
        let believed = estimate(platform, collective, bytes, algorithm, protocol);
        PhysicsCase {
            collective,
            algorithm,
            protocol,
            bytes: bytes as f64,
            ranks: f64::from(platform.ranks),
            nodes: f64::from(platform.nodes),
            devices: f64::from(platform.ranks_per_node()),
            machine: self.call_machine(),
            channels: f64::from(graph.channels),
            running: running(platform, algorithm, &graph),
            used: used(running(platform, algorithm, &graph), bytes as f64, platform, algorithm, protocol),
            base: super::super::constants::base_us(algorithm, opening(collective, protocol)),
            step: super::super::constants::inside_us(platform, algorithm, protocol),
            adds_bytes: false,
            first,
            tuner_us: believed.map_or(f64::NAN, |found| found.time_us),
        }
    }

    fn call_machine(&self) -> CallMachine {
        let Setting { machine, platform, .. } = self;
        let nics = machine.nics;
        CallMachine {
            clock: machine.gpu.clock,
            generation: machine.gpu.generation,
            nvlink: machine.nvlink,
            switched: machine.switched,
            port: machine.port().bandwidth().as_gb(),
            network: machine.network().map_or(0.0, |all| all.as_gb()),
            nics: nics.map_or(0.0, |nics| f64::from(nics.count)),
            fabric: nics.map_or(Fabric::Unknown, |nics| nics.fabric),
            direct: nics.is_none_or(|nics| nics.gpudirect),
            peer: machine.peer,
            sharing_uplink: f64::from(machine.sharing_uplink),
            tree: super::super::constants::tree(platform),
            driven: f64::from(self.driven),
            host_stores: self.host_stores,
        }
    }
}

/// The protocol whose base latency a call has. A group of sends and receives starts as soon with Simple as with LL: with the latency
/// of rings by Simple, all-to-alls of 256 KiB on A100, H100, B200 and GB200 were predicted 1.5 to 2.3 times too slow.
pub(super) fn opening(collective: Collective, protocol: Protocol) -> Protocol {
    if collective == Collective::AllToAll { Protocol::Ll } else { protocol }
}

/// The number of channels that NCCL launches for large calls.
fn running(platform: &Platform, algorithm: NcclAlgorithm, graph: &Graph) -> f64 {
    let doubled = match algorithm {
        NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => 1,
        _ => platform.doubled,
    };
    f64::from((graph.channels * doubled).min(64))
}

/// The number of channels for this size: NCCL drops channels until every thread has work (`src/enqueue.cc`, thresholds of
/// `src/graph/tuning.cc`).
fn used(all: f64, bytes: f64, platform: &Platform, algorithm: NcclAlgorithm, protocol: Protocol) -> f64 {
    let least = match protocol {
        Protocol::Ll if algorithm == NcclAlgorithm::Ring => 512.0 * 8.0 * f64::from(platform.ranks),
        Protocol::Ll => 512.0 * 8.0,
        Protocol::Ll128 => 640.0 * 8.0,
        Protocol::Simple => 512.0 * 64.0,
    };
    (bytes / least).ceil().clamp(1.0, all)
}
