//! The part of a call's time that does not depend on its size.

use super::constants::{across_us, base_us, inside_us};
use super::{Graph, HostCpu, NcclAlgorithm, Platform, Protocol};
use allfold_schedules::Collective;

/// The number of steps of a ring; in an all-reduce the data pass around the ring twice.
pub(super) fn ring_steps(collective: Collective, ranks: u32) -> f64 {
    let n = f64::from(ranks);
    match collective {
        Collective::AllReduce => 2.0 * (n - 1.0),
        Collective::AllGather | Collective::ReduceScatter => n - 1.0,
        _ => n,
    }
}

/// The latency of a call in microseconds: the base latency and the latencies of all steps.
pub(super) fn latency(
    platform: &Platform,
    collective: Collective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
    graph: &Graph,
) -> f64 {
    let (nodes, each) = (f64::from(platform.nodes), f64::from(platform.ranks_per_node()));
    let doublings = f64::from(platform.nodes.ilog2());
    let base = base_us(algorithm, protocol);
    let inside = inside_us(platform, algorithm, protocol);
    // With one rank per node the network's latency is fully exposed, and NCCL takes the tree's figure for every algorithm.
    let exposed = if platform.ranks_per_node() == 1 { NcclAlgorithm::Tree } else { algorithm };
    // Simple flushes the NIC's writes, which adds the NIC's latency once more.
    let flushes = if protocol == Protocol::Simple { 2.0 } else { 1.0 };
    let across = across_us(exposed, protocol) + flushes * graph.nic_us;

    let steps = match algorithm {
        NcclAlgorithm::Ring => ring(platform, collective, protocol, graph, (inside, across)),
        NcclAlgorithm::Tree => 2.0 * ((each - 1.0) * inside + doublings * across),
        NcclAlgorithm::CollNetDirect => 2.0 * ((each - 1.0).min(1.0) * inside + (each - 1.0) * 0.4) + across,
        NcclAlgorithm::CollNetChain => 2.0 * (each - 1.0) * inside + across,
        NcclAlgorithm::Nvls if nodes > 1.0 => inside + across,
        NcclAlgorithm::Nvls => inside,
        NcclAlgorithm::NvlsTree => inside + 2.0 * doublings * across,
        NcclAlgorithm::Pat => doublings * across / 3.5 + 2.8 * f64::from(platform.ranks),
    };
    base + steps
}

fn ring(
    platform: &Platform,
    collective: Collective,
    protocol: Protocol,
    graph: &Graph,
    (inside, across): (f64, f64),
) -> f64 {
    let steps = ring_steps(collective, platform.ranks);
    if matches!(collective, Collective::Broadcast | Collective::Reduce) {
        return match (graph.same_channels, protocol) {
            (true, _) => inside,
            (false, Protocol::Simple) => steps * inside_us(platform, NcclAlgorithm::Tree, protocol),
            (false, _) => steps * inside,
        };
    }
    let hops = f64::from(platform.nodes - 1);
    let crossings = if collective == Collective::AllReduce { 2.0 * hops } else { hops };
    (steps - crossings) * inside.max(net_overhead(platform, protocol)) + crossings * across
}

/// The proxy's overhead of posting to the network, in microseconds per step; 0 on one node.
fn net_overhead(platform: &Platform, protocol: Protocol) -> f64 {
    if platform.nodes == 1 {
        return 0.0;
    }
    let once = if platform.cpu == HostCpu::Amd { 2.0 } else { 1.0 };
    if protocol == Protocol::Simple { 3.0 * once } else { once }
}
