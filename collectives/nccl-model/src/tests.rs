//! Tests of the tuner model against results calculated by hand.

use super::*;
use allfold_schedules::Collective::{self, AllGather, AllReduce, Barrier, Broadcast, ReduceScatter};

fn near(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() < 0.005 * wanted
}

/// Nodes of 8 A100 GPUs with NVLink at 12 x 20 GB/s and NICs at 12 x 16 GB/s.
fn a100(nodes: u32) -> Platform {
    Platform::nvlink(Arch::Ampere, nodes, 8 * nodes, Graph::inside(12, 20.0).across(16.0))
}

fn busbw(platform: &Platform, collective: Collective, algorithm: NcclAlgorithm, protocol: Protocol) -> f64 {
    let found = estimate(platform, collective, 1 << 34, algorithm, protocol).unwrap();
    (1u64 << 34) as f64 / found.time_us / 1e3 * collective.bus_factor(platform.ranks)
}

fn latency_us(
    platform: &Platform,
    collective: Collective,
    algorithm: NcclAlgorithm,
    protocol: Protocol,
) -> f64 {
    estimate(platform, collective, 8, algorithm, protocol).unwrap().latency_us
}

#[test]
fn a_ring_reaches_its_channels() {
    for (arch, links, speed, plateau) in [
        (Arch::Volta, 6, 20.0, 120.0),
        (Arch::Ampere, 12, 20.0, 240.0),
        (Arch::Hopper, 18, 20.6, 371.0),
        (Arch::Blackwell, 18, 40.1, 722.0),
    ] {
        let platform = Platform::nvlink(arch, 1, 8, Graph::inside(links, speed));
        for collective in [AllReduce, AllGather, ReduceScatter] {
            let found = busbw(&platform, collective, NcclAlgorithm::Ring, Protocol::Simple);
            assert!(near(found, plateau), "{arch:?} {collective}: {found}");
        }
    }
}

#[test]
fn latencies_are_those_worked_by_hand() {
    let one = a100(1);
    assert!(near(latency_us(&one, AllReduce, NcclAlgorithm::Ring, Protocol::Ll), 6.6 + 14.0 * 0.6));
    assert!(near(latency_us(&one, AllGather, NcclAlgorithm::Ring, Protocol::Ll), 6.6 + 7.0 * 0.6));
    let gh200 = Platform::nvlink(Arch::Hopper, 1, 4, Graph::inside(18, 20.6));
    assert!(near(latency_us(&gh200, AllReduce, NcclAlgorithm::Ring, Protocol::Ll), 10.2));
    // On two nodes, the tree has 7 steps up the chain and 7 down, and one step across nodes each way.
    assert!(near(latency_us(&a100(2), AllReduce, NcclAlgorithm::Tree, Protocol::Ll), 25.2));
    assert!(near(latency_us(&a100(4), AllReduce, NcclAlgorithm::Tree, Protocol::Ll), 35.2));
    // 2 of 30 steps cross nodes; each other step takes at least the overhead of posting to the network, three times that with
    // Simple.
    assert!(near(latency_us(&a100(2), AllReduce, NcclAlgorithm::Ring, Protocol::Ll), 6.6 + 28.0 + 2.0 * 2.7));
    assert!(near(
        latency_us(&a100(2), AllReduce, NcclAlgorithm::Ring, Protocol::Simple),
        8.4 + 28.0 * 3.4 + 28.0
    ));
    let amd = Platform { cpu: HostCpu::Amd, ..a100(2) };
    assert!(near(latency_us(&amd, AllReduce, NcclAlgorithm::Ring, Protocol::Ll), 6.6 + 56.0 + 5.4));
    assert!(near(latency_us(&one, Broadcast, NcclAlgorithm::Ring, Protocol::Ll), 6.6 + 0.6));
}

#[test]
fn a_nics_latency_counts_once_and_twice_with_simple() {
    let slow = |us| {
        let graph = Graph { nic_us: us, ..Graph::inside(4, 12.0) };
        Platform::nvlink(Arch::Volta, 2, 2, graph)
    };
    let extra = |protocol| {
        let of = |us| latency_us(&slow(us), AllReduce, NcclAlgorithm::Ring, protocol);
        of(10.0) - of(0.0)
    };
    assert!(near(extra(Protocol::Ll), 20.0) && near(extra(Protocol::Simple), 40.0));
    // With one rank per node the network's latency is fully exposed, and the tree's figure is taken.
    assert!(near(latency_us(&slow(0.0), AllReduce, NcclAlgorithm::Ring, Protocol::Ll), 6.6 + 2.0 * 5.0));
}

#[test]
fn small_calls_take_ll_and_large_ones_rings_with_simple() {
    let chosen = |nodes, bytes| {
        let found = choose(&a100(nodes), AllReduce, bytes, &Overrides::default()).unwrap();
        (found.algorithm, found.protocol)
    };
    assert_eq!(chosen(2, 8), (NcclAlgorithm::Tree, Protocol::Ll));
    assert_eq!(chosen(8, 8), (NcclAlgorithm::Tree, Protocol::Ll));
    assert_eq!(chosen(1, 1 << 34), (NcclAlgorithm::Ring, Protocol::Simple));
    let large = choose(&a100(8), AllGather, 1 << 34, &Overrides::default()).unwrap();
    assert_eq!((large.algorithm, large.protocol), (NcclAlgorithm::Ring, Protocol::Simple));
    let distrusted = Platform { ll128: false, ..a100(1) };
    for exponent in 3..34 {
        let found = choose(&distrusted, AllReduce, 1 << exponent, &Overrides::default()).unwrap();
        assert_ne!(found.protocol, Protocol::Ll128);
    }
}

#[test]
fn the_environments_choice_is_used() {
    let chosen = |algorithms: &str, protocols: &str, collective, bytes| {
        let overrides = Overrides::new(algorithms, protocols).unwrap();
        choose(&a100(2), collective, bytes, &overrides).map(|found| (found.algorithm, found.protocol))
    };
    assert_eq!(chosen("ring", "simple", AllReduce, 8), Ok((NcclAlgorithm::Ring, Protocol::Simple)));
    assert_eq!(chosen("^tree", "^LL", AllReduce, 8), Ok((NcclAlgorithm::Ring, Protocol::Ll128)));
    assert_eq!(
        chosen("Ring;allreduce:Tree", "LL", AllReduce, 1 << 34),
        Ok((NcclAlgorithm::Tree, Protocol::Ll))
    );
    assert_eq!(chosen("Ring;allreduce:Tree", "LL", AllGather, 8), Ok((NcclAlgorithm::Ring, Protocol::Ll)));
    assert!(chosen("tree", "", AllGather, 8).unwrap_err().to_string().contains("16 ranks of 2 nodes"));
    assert!(chosen("nvls", "", AllReduce, 8).is_err(), "no NVLink switch reduces here");
    assert!(chosen("", "", Barrier, 8).is_err());
}

#[test]
fn errors_of_unreadable_values_contain_a_remedy() {
    let said = |algorithms, protocols| Overrides::new(algorithms, protocols).unwrap_err().to_string();
    assert!(said("rnig", "").starts_with("NCCL_ALGO: no algorithm is called `rnig`; did you mean `Ring`?"));
    assert!(said("", "LL64").starts_with("NCCL_PROTO: no protocol is called `LL64`"));
    assert!(said("allredcue:ring", "").contains("did you mean `allreduce`?"));
    assert!(said("allreduce:tree;ring", "").contains("write it before the entries"));
    assert!(said("^", "").contains("no algorithm is called ``"));
}

#[test]
fn each_algorithm_needs_its_hardware() {
    let nvls = Platform {
        nvls: Some(Graph::inside(16, 20.0)),
        ..Platform::nvlink(Arch::Hopper, 1, 8, Graph::inside(16, 20.0))
    };
    // The bus bandwidth is 16 channels x 20 GB/s x 0.85 x 15/16, doubled for an all-reduce.
    let found = busbw(&nvls, AllReduce, NcclAlgorithm::Nvls, Protocol::Simple);
    assert!(near(found, 16.0 * 20.0 * 0.85 * 15.0 / 16.0 * 2.0), "{found}");
    let runs = |platform: &Platform, collective, algorithm, protocol| {
        estimate(platform, collective, 8, algorithm, protocol).is_some()
    };
    assert!(!runs(&nvls, AllReduce, NcclAlgorithm::Nvls, Protocol::Ll));
    assert!(!runs(&nvls, AllReduce, NcclAlgorithm::NvlsTree, Protocol::Simple), "one node has no tree");
    let two = Platform { nodes: 2, ranks: 16, ..nvls };
    assert!(!runs(&two, AllReduce, NcclAlgorithm::Nvls, Protocol::Simple), "the network does not reduce");
    assert!(runs(&two, AllReduce, NcclAlgorithm::NvlsTree, Protocol::Simple));
    assert!(!runs(&a100(1), AllReduce, NcclAlgorithm::Nvls, Protocol::Simple));
    assert!(!runs(&a100(2), AllGather, NcclAlgorithm::Pat, Protocol::Simple), "PAT wants one rank a node");
    let spread = Platform { ranks: 2, ..a100(2) };
    assert!(runs(&spread, AllGather, NcclAlgorithm::Pat, Protocol::Simple));
    assert!(!runs(&a100(2), AllGather, NcclAlgorithm::Tree, Protocol::Simple));
    let collnet = Platform { collnet: Some(Graph::inside(8, 20.0)), ..a100(2) };
    assert!(
        !runs(&collnet, AllReduce, NcclAlgorithm::CollNetDirect, Protocol::Simple),
        "it wants NVLink switches"
    );
    assert!(runs(&collnet, AllReduce, NcclAlgorithm::CollNetChain, Protocol::Simple));
    assert!(runs(
        &Platform { nvswitch: true, ..collnet },
        AllReduce,
        NcclAlgorithm::CollNetDirect,
        Protocol::Simple
    ));
}

#[test]
fn one_rank_is_free_and_no_machine_is_no_estimate() {
    let one = Platform::nvlink(Arch::Hopper, 1, 1, Graph::inside(16, 20.0));
    assert_eq!(choose(&one, AllReduce, 1 << 30, &Overrides::default()).unwrap().time_us, 0.0);
    for (nodes, ranks) in [(0, 8), (2, 1)] {
        let none = Platform { nodes, ranks, ..one.clone() };
        assert!(choose(&none, AllReduce, 8, &Overrides::default()).is_err());
    }
}

#[test]
fn a_rings_plateau_costs_latency_on_several_nodes() {
    let ring = |bytes| {
        estimate(&a100(2), AllReduce, bytes, NcclAlgorithm::Ring, Protocol::Simple).unwrap().latency_us
    };
    let edge = 64 * 12 * 16;
    assert!(near(ring(edge) / ring(edge - 1), 1.4));
}

#[test]
fn collnet_is_chosen_where_the_network_reduces_and_refused_with_the_reason_elsewhere() {
    let only = Overrides::new("CollNetDirect,CollNetChain", "").unwrap();
    let said = choose(&a100(2), AllReduce, 1 << 20, &only).unwrap_err().to_string();
    assert!(said.contains("NCCL_COLLNET_ENABLE=1"), "{said}");
    let plain = a100(4);
    let sharp = Platform { collnet: Some(plain.ring), nvswitch: true, ..plain.clone() };
    let found = choose(&sharp, AllReduce, 1 << 30, &only).unwrap();
    assert_eq!(found.protocol, Protocol::Simple);
    // The network's switches receive every byte once; a ring sends nearly every byte twice.
    let ring = estimate(&plain, AllReduce, 1 << 30, NcclAlgorithm::Ring, Protocol::Simple).unwrap();
    assert!(found.time_us < ring.time_us, "{} us, a ring {}", found.time_us, ring.time_us);
}
