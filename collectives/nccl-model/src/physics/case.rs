//! One call on one machine, with NCCL's choice made: all that the model needs and nothing that is fitted.

use super::super::{Graph, NcclAlgorithm, NoChoice, Overrides, Platform, Protocol, choose, estimate};
use allfold_schedules::Collective;
use allfold_sim::machines::{Fabric, Generation, Machine};

/// A machine as a run used it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The machine.
    pub machine: Machine,
    /// The machine as NCCL's tuner sees it.
    pub platform: Platform,
    /// The environment's restrictions of the tuner's choice.
    pub overrides: Overrides,
    /// GPUs that one process drives.
    pub driven: u32,
    /// Where the host matches messages to buffers and the NIC does not: the bytes up to which it stores them in a GPU's
    /// memory itself.
    pub host_stores: Option<f64>,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhysicsCase {
    /// The collective that is called.
    pub collective: Collective,
    /// NCCL's choice.
    pub algorithm: NcclAlgorithm,
    /// NCCL's choice.
    pub protocol: Protocol,
    /// nccl-tests' size.
    pub bytes: f64,
    /// The number of all ranks.
    pub ranks: f64,
    /// Groups that share NVLink or PCIe.
    pub nodes: f64,
    /// The number of ranks of one node.
    pub devices: f64,
    /// Generation of the GPUs.
    pub generation: Generation,
    /// Whether they talk over NVLink.
    pub nvlink: bool,
    /// Whether switches join them.
    pub switched: bool,
    /// GB/s out of a GPU, nominal.
    pub port: f64,
    /// GB/s out of a node over its NICs, nominal; 0 where there is one node.
    pub network: f64,
    /// NICs of a node.
    pub nics: f64,
    /// The protocol that the NICs speak.
    pub fabric: Fabric,
    /// Whether they reach the GPUs' memory.
    pub direct: bool,
    /// Whether LL128 may be used.
    pub ll128: bool,
    /// Whether GPUs of a node write into each other's memory.
    pub peer: bool,
    /// Channels that the search found.
    pub channels: f64,
    /// The channels that run; for large calls all of them.
    pub running: f64,
    /// Channels that run for a call of this size.
    pub used: f64,
    /// Microseconds by NCCL's tuner: of the base, of a step inside a node.
    pub base: f64,
    /// Microseconds of a step inside a node, by NCCL's tuner.
    pub step: f64,
    /// GB/s that a tree's channel carries, by NCCL's tuner.
    pub tree: f64,
    /// GPUs that one process drives.
    pub driven: f64,
    /// Where the host matches messages: the bytes up to which it stores them in a GPU's memory itself.
    pub host_stores: Option<f64>,
    /// Whether it is the first size of a run.
    pub first: bool,
    /// The tuner's own estimate, in microseconds.
    pub tuner_us: f64,
}

impl Setting {
    /// A call with NCCL's choice.
    ///
    /// # Errors
    /// Where the overrides leave nothing.
    pub fn case(&self, collective: Collective, bytes: u64, first: bool) -> Result<PhysicsCase, NoChoice> {
        let chosen = choose(&self.platform, collective, bytes, &self.overrides)?;
        Ok(self.with(collective, bytes, first, chosen.algorithm, chosen.protocol))
    }

    /// A call by this algorithm and protocol instead of those that NCCL would choose.
    pub fn with(
        &self,
        collective: Collective,
        bytes: u64,
        first: bool,
        algorithm: NcclAlgorithm,
        protocol: Protocol,
    ) -> PhysicsCase {
        let Setting { machine, platform, .. } = self;
        let graph = match algorithm {
            NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => platform.nvls.unwrap_or(platform.ring),
            NcclAlgorithm::Tree => platform.tree,
            _ => platform.ring,
        };
        let nics = machine.nics;
        let believed = estimate(platform, collective, bytes, algorithm, protocol);
        PhysicsCase {
            collective,
            algorithm,
            protocol,
            bytes: bytes as f64,
            ranks: f64::from(platform.ranks),
            nodes: f64::from(platform.nodes),
            devices: f64::from(platform.ranks_per_node()),
            generation: machine.gpu.generation,
            nvlink: machine.nvlink,
            switched: machine.switched,
            port: machine.port().bandwidth().0 as f64 / 1e9,
            network: machine.network().map_or(0.0, |all| all.0 as f64 / 1e9),
            nics: nics.map_or(0.0, |nics| f64::from(nics.count)),
            fabric: nics.map_or(Fabric::Unknown, |nics| nics.fabric),
            direct: nics.is_none_or(|nics| nics.gpudirect),
            ll128: platform.ll128,
            peer: machine.peer,
            channels: f64::from(graph.channels),
            running: running(platform, algorithm, &graph),
            used: used(running(platform, algorithm, &graph), bytes as f64, platform, algorithm, protocol),
            base: super::super::constants::base_us(algorithm, protocol),
            step: super::super::constants::inside_us(platform, algorithm, protocol),
            tree: super::super::constants::tree(platform),
            driven: f64::from(self.driven),
            host_stores: self.host_stores,
            first,
            tuner_us: believed.map_or(f64::NAN, |found| found.time_us),
        }
    }
}

/// Channels that are launched for large calls.
fn running(platform: &Platform, algorithm: NcclAlgorithm, graph: &Graph) -> f64 {
    let doubled = match algorithm {
        NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => 1,
        _ => platform.doubled,
    };
    f64::from((graph.channels * doubled).min(64))
}

/// NCCL drops channels until every thread has something to do (`src/enqueue.cc`, thresholds of `src/graph/tuning.cc`).
fn used(all: f64, bytes: f64, platform: &Platform, algorithm: NcclAlgorithm, protocol: Protocol) -> f64 {
    let least = match protocol {
        Protocol::Ll if algorithm == NcclAlgorithm::Ring => 512.0 * 8.0 * f64::from(platform.ranks),
        Protocol::Ll => 512.0 * 8.0,
        Protocol::Ll128 => 640.0 * 8.0,
        Protocol::Simple => 512.0 * 64.0,
    };
    (bytes / least).ceil().clamp(1.0, all)
}
