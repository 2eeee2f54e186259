//! The bandwidth of a call in NCCL's tuner model, in GB/s (bytes per microsecond, divided by 1000).

use super::constants::{ll_most, nvls_efficiency, nvls_tree, ring_ll128, tree, tree_ll128};
use super::latency::ring_steps;
use super::{Arch, Graph, NcclAlgorithm, Platform, Protocol};
use allfold_schedules::Collective;

/// The bandwidth of a call's bytes (algbw) in GB/s, before the correction by size; 0 if the candidate cannot run.
pub(super) fn bandwidth(
    platform: &Platform,
    collective: Collective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
    graph: &Graph,
) -> f64 {
    let collnet = matches!(algorithm, NcclAlgorithm::CollNetDirect | NcclAlgorithm::CollNetChain);
    let speed = if platform.nodes <= 2 || collnet { graph.inside } else { graph.across };
    let channels = f64::from(graph.channels);
    let all = channels * speed;
    let bus = match algorithm {
        NcclAlgorithm::Ring => match protocol {
            Protocol::Ll => (all * 0.5).min(ll_most(platform)),
            Protocol::Ll128 => (all * 0.92).min(channels * ring_ll128(platform.arch)),
            Protocol::Simple => all,
        },
        NcclAlgorithm::Tree => {
            let most = (all * 0.92).min(channels * tree(platform));
            // The share of LL128's bytes that are data, as NCCL's tuner has it for trees; the rest are flags.
            let data = if platform.nodes == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
            match protocol {
                Protocol::Ll => (most / 3.8).min(ll_most(platform)),
                Protocol::Ll128 => (most * data).min(channels * tree_ll128(platform)),
                Protocol::Simple => most,
            }
        }
        NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => {
            channels * nvls(platform, collective, algorithm, graph)
        }
        NcclAlgorithm::CollNetDirect => collnet_direct(platform, collective, graph),
        NcclAlgorithm::CollNetChain => all,
        NcclAlgorithm::Pat => all * 0.75,
    };
    to_algorithm(platform, collective, algorithm, bus)
}

/// NCCL's factor from bus bandwidth to algorithm bandwidth, applied to `bus`.
fn to_algorithm(platform: &Platform, collective: Collective, algorithm: NcclAlgorithm, bus: f64) -> f64 {
    let steps = ring_steps(collective, platform.ranks);
    let gathers = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
    match algorithm {
        NcclAlgorithm::Ring => bus * f64::from(platform.ranks) / steps,
        _ if gathers => bus,
        NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => bus * f64::from(platform.ranks) / steps,
        _ => bus * 0.5,
    }
}

/// The bandwidth of one NVLS or NVLSTree channel in GB/s, limited by the network on several nodes; 0 for a single channel.
fn nvls(platform: &Platform, collective: Collective, algorithm: NcclAlgorithm, graph: &Graph) -> f64 {
    if graph.channels < 2 {
        return 0.0;
    }
    let (channels, each) = (f64::from(graph.channels), f64::from(platform.ranks_per_node()));
    let share = if collective == Collective::AllReduce { 2.0 } else { (each - 1.0) / each };
    let inside = graph.inside * nvls_efficiency(platform.arch) * (channels - 1.0) / channels * share;
    match (algorithm, platform.nodes) {
        (_, 1) => inside,
        (NcclAlgorithm::NvlsTree, 2) => inside.min(2.0 * graph.across).min(nvls_tree(platform)),
        (NcclAlgorithm::NvlsTree, _) => inside.min(graph.across).min(nvls_tree(platform)),
        _ => inside.min(graph.across),
    }
}

/// The bus bandwidth of CollNet direct: every GPU uses its own NIC, and the network's switches reduce.
fn collnet_direct(platform: &Platform, collective: Collective, graph: &Graph) -> f64 {
    let each = f64::from(platform.ranks_per_node());
    if collective != Collective::AllReduce {
        return each * graph.inside.min(0.9 * graph.across);
    }
    let factor = each / f64::from(graph.channels);
    let factor = factor - (factor - 1.0) / 2.0;
    let reached = f64::from(graph.channels) * graph.inside / factor;
    if platform.arch >= Arch::Hopper { reached * 0.85 } else { reached }
}
