//! The tables of NCCL's tuner. Source of every figure: NCCL 2.29, `src/graph/tuning.cc`.

use super::{Arch, HostCpu, Inside, NcclAlgorithm, Platform, Protocol};

/// The latency of a call before its first step, in microseconds.
pub(super) fn base_us(algorithm: NcclAlgorithm, protocol: Protocol) -> f64 {
    let row = match algorithm {
        NcclAlgorithm::Tree => [6.8, 14.0, 8.4],
        NcclAlgorithm::Ring => [6.6, 14.0, 8.4],
        NcclAlgorithm::Pat => [8.0, 8.0, 8.0],
        _ => [0.0; 3],
    };
    row[protocol as usize]
}

/// The latency of a step within a node, in microseconds.
pub(super) fn inside_us(platform: &Platform, algorithm: NcclAlgorithm, protocol: Protocol) -> f64 {
    let nvlink = platform.links == Inside::NvLink;
    // On POWER, the Simple protocol of a tree over PCI has the ring's latency.
    let power = platform.cpu == HostCpu::Power && !nvlink && protocol == Protocol::Simple;
    let row = match algorithm {
        NcclAlgorithm::Tree if nvlink => [0.6, 1.25, 4.0],
        NcclAlgorithm::Tree if !power => [1.0, 1.9, 4.0],
        NcclAlgorithm::Ring if nvlink => [0.6, 1.9, 3.4],
        NcclAlgorithm::Tree | NcclAlgorithm::Ring => [1.0, 2.5, 5.7],
        NcclAlgorithm::CollNetDirect => [0.0, 0.0, 3.7],
        NcclAlgorithm::CollNetChain => [0.0, 0.0, 2.8],
        NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => [0.0, 0.0, if nvlink { 25.0 } else { 0.0 }],
        NcclAlgorithm::Pat => [0.0, 0.0, 4.0],
    };
    row[protocol as usize]
}

/// The latency of a step across nodes, in microseconds, without the latency that the NIC declares.
pub(super) fn across_us(algorithm: NcclAlgorithm, protocol: Protocol) -> f64 {
    let row = match algorithm {
        NcclAlgorithm::Tree => [5.0, 8.5, 14.0],
        NcclAlgorithm::Ring => [2.7, 4.0, 14.0],
        NcclAlgorithm::CollNetDirect => [0.0, 0.0, 31.0],
        NcclAlgorithm::CollNetChain => [0.0, 0.0, 30.0],
        NcclAlgorithm::Nvls => [0.0, 0.0, 18.0],
        NcclAlgorithm::NvlsTree => [0.0, 0.0, 20.9],
        NcclAlgorithm::Pat => [0.0, 0.0, 14.0],
    };
    row[protocol as usize]
}

/// The column for a number of nodes in the tables that have three columns: one node, two, or more.
fn column(nodes: u32) -> usize {
    nodes.clamp(1, 3) as usize - 1
}

/// The greatest bandwidth of LL in GB/s. With several nodes, AMD CPUs take Ampere's row, and other CPUs Volta's.
pub(super) fn ll_most(platform: &Platform) -> f64 {
    let row = match (platform.nodes, platform.cpu) {
        (..=1, _) => platform.arch,
        (_, HostCpu::Amd) => Arch::Ampere,
        _ => Arch::Volta,
    };
    let rows = [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]];
    rows[row as usize][column(platform.nodes)]
}

/// Bandwidth of a ring's channel with LL128, in GB/s.
pub(super) fn ring_ll128(arch: Arch) -> f64 {
    [20.0, 20.0, 36.7, 40.0][arch as usize]
}

/// Bandwidth of a tree's channel with LL128, in GB/s.
pub(super) fn tree_ll128(platform: &Platform) -> f64 {
    let rows = [[20.0; 3], [20.0; 3], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]];
    rows[platform.arch as usize][column(platform.nodes)]
}

/// The greatest bandwidth of a tree's channel with any protocol, in GB/s.
pub(super) fn tree(platform: &Platform) -> f64 {
    let rows = [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]];
    rows[platform.arch as usize][column(platform.nodes)]
}

/// The greatest bandwidth of an NVLSTree channel, in GB/s.
pub(super) fn nvls_tree(platform: &Platform) -> f64 {
    let rows = [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]];
    rows[platform.arch as usize][column(platform.nodes)]
}

/// The share of the links' bandwidth that reduction in the NVLink switch achieves; 0 for generations without it.
pub(super) fn nvls_efficiency(arch: Arch) -> f64 {
    [0.0, 0.0, 0.85, 0.74][arch as usize]
}

/// The share of its bandwidth that a tree achieves for a call of `bytes`, from NCCL's table for powers of two from 64 B; 1 for
/// sizes that the table does not cover.
pub(super) fn tree_correction(protocol: Protocol, bytes: u64) -> f64 {
    const LL: [f64; 23] = [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
        1.0, 1.0, 1.0,
    ];
    const LL128: [f64; 23] = [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9,
        0.9, 1.0, 1.0,
    ];
    const SIMPLE: [f64; 23] = [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7,
        0.8, 0.9, 0.9,
    ];
    let table = match protocol {
        Protocol::Ll => &LL,
        Protocol::Ll128 => &LL128,
        Protocol::Simple => &SIMPLE,
    };
    let at = (bytes / 64).checked_ilog2().map(|log| log as usize);
    at.and_then(|at| table.get(at)).copied().unwrap_or(1.0)
}
