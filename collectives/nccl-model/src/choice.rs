//! NCCL's choice of algorithm and protocol for a call, and the tuner's estimate of the call's time.

use super::bandwidth::bandwidth;
use super::constants::tree_correction;
use super::latency::latency;
use super::{Arch, Graph, NcclAlgorithm, Overrides, Platform, Protocol};
use allfold_schedules::Collective;

/// The collectives that NCCL's tuner covers; NCCL composes others of sends and receives.
pub const TUNED: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// The tuner model's estimate for one candidate: an algorithm with a protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The candidate's algorithm: how ranks are connected.
    pub algorithm: NcclAlgorithm,
    /// The candidate's protocol: how bytes are transferred.
    pub protocol: Protocol,
    /// The part of the time that does not depend on the size, in microseconds.
    pub latency_us: f64,
    /// The bandwidth of the call's bytes in GB/s (1e9).
    pub algbw_gbps: f64,
    /// The estimated time in microseconds: latency plus bytes over bandwidth.
    pub time_us: f64,
}

/// The error that no candidate can run the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NCCL has no algorithm and protocol for {collective} on {ranks} ranks of {nodes} nodes that NCCL_ALGO and NCCL_PROTO allow{why}"
)]
pub struct NoChoice {
    collective: Collective,
    ranks: u32,
    nodes: u32,
    why: &'static str,
}

/// The candidate that NCCL would run: the least estimated time; of equal times, the first in NCCL's order. `bytes` is nccl-tests'
/// size: the total, for all-gather and reduce-scatter too. A call with one rank takes no time.
///
/// # Errors
/// `overrides` leave no candidate that the platform can run; NCCL does not tune the collective (gather, all-to-all, ..); the
/// platform has no node, or fewer ranks than nodes.
pub fn choose(
    platform: &Platform,
    collective: Collective,
    bytes: u64,
    overrides: &Overrides,
) -> Result<Estimate, NoChoice> {
    let mut best: Option<Estimate> = None;
    for algorithm in NcclAlgorithm::ALL {
        for protocol in Protocol::ALL {
            let Some(found) = allowed(platform, collective, bytes, overrides, algorithm, protocol) else {
                continue;
            };
            if best.is_none_or(|best| found.time_us < best.time_us) {
                best = Some(found);
            }
        }
    }
    best.ok_or_else(|| {
        let asked = |algorithm| overrides.algorithm(collective, algorithm) == Some(true);
        let network = asked(NcclAlgorithm::CollNetDirect) || asked(NcclAlgorithm::CollNetChain);
        let why = match network && platform.collnet.is_none() {
            true => "; CollNet needs NCCL_COLLNET_ENABLE=1 and switches of the network that reduce (SHARP)",
            false => "",
        };
        NoChoice { collective, ranks: platform.ranks, nodes: platform.nodes, why }
    })
}

fn allowed(
    platform: &Platform,
    collective: Collective,
    bytes: u64,
    overrides: &Overrides,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> Option<Estimate> {
    // LL128 is allowed only on links that keep the order of stores, unless the user requests it.
    let trusted = protocol != Protocol::Ll128 || platform.ll128;
    let protocol_allowed = overrides.protocol(collective, protocol).unwrap_or(trusted);
    let algorithm_allowed = overrides.algorithm(collective, algorithm).unwrap_or(true);
    match protocol_allowed && algorithm_allowed {
        true => estimate(platform, collective, bytes, algorithm, protocol),
        false => None,
    }
}

/// NCCL's estimate for one candidate; `None` if the candidate cannot run the call.
pub fn estimate(
    platform: &Platform,
    collective: Collective,
    bytes: u64,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> Option<Estimate> {
    if platform.nodes == 0 || platform.ranks < platform.nodes {
        return None;
    }
    let graph = graph(platform, collective, algorithm, protocol)?;
    if platform.ranks == 1 {
        let free = Estimate { algorithm, protocol, latency_us: 0.0, algbw_gbps: f64::INFINITY, time_us: 0.0 };
        return Some(free);
    }
    let mut latency_us = latency(platform, collective, algorithm, protocol, &graph);
    let mut algbw_gbps = bandwidth(platform, collective, algorithm, protocol, &graph);
    // On Blackwell with x86 CPUs, NVLSTree uses the tree's correction.
    let x86 = matches!(platform.cpu, super::HostCpu::Intel | super::HostCpu::Amd);
    let like_tree = algorithm == NcclAlgorithm::NvlsTree && platform.arch == Arch::Blackwell && x86;
    if algorithm == NcclAlgorithm::Tree || like_tree {
        algbw_gbps *= tree_correction(protocol, bytes);
    }
    let share = bytes / (u64::from(graph.channels.max(1)) * u64::from(platform.ranks));
    let plateau =
        (algorithm, protocol, collective) == (NcclAlgorithm::Ring, Protocol::Simple, Collective::AllReduce);
    if plateau && platform.nodes > 1 && share >= 64 {
        latency_us *= if platform.arch == Arch::Volta { 1.9 } else { 1.4 };
    }
    let possible = algbw_gbps > 0.0;
    let time_us = latency_us + bytes as f64 / (1000.0 * algbw_gbps);
    possible.then_some(Estimate { algorithm, protocol, latency_us, algbw_gbps, time_us })
}

/// The channels that a candidate uses; `None` if the candidate cannot run the call.
fn graph(
    platform: &Platform,
    collective: Collective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> Option<Graph> {
    let reduce_or_copy = matches!(collective, Collective::Broadcast | Collective::Reduce);
    let gathers = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
    let all_reduce = collective == Collective::AllReduce;
    let simple = protocol == Protocol::Simple;
    match algorithm {
        NcclAlgorithm::Ring if reduce_or_copy || gathers || all_reduce => Some(platform.ring),
        NcclAlgorithm::Tree if all_reduce => Some(platform.tree),
        NcclAlgorithm::Nvls if simple && (gathers || all_reduce) => {
            // Across nodes, NVLS needs the network's switches (CollNet) as well.
            platform.nvls.filter(|_| platform.nodes == 1 || platform.collnet.is_some())
        }
        NcclAlgorithm::NvlsTree if simple && all_reduce && platform.nodes > 1 => platform.nvls,
        NcclAlgorithm::CollNetDirect if simple && (gathers || all_reduce) => {
            platform.collnet.filter(|_| platform.nvswitch && platform.ranks_per_node() <= 8)
        }
        NcclAlgorithm::CollNetChain if simple && all_reduce => platform.collnet,
        NcclAlgorithm::Pat if platform.pat && simple && gathers && platform.ranks == platform.nodes => {
            Some(platform.ring)
        }
        _ => None,
    }
}
