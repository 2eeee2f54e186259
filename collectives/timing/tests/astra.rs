#![allow(missing_docs, clippy::unwrap_used)]
//! Runs in ASTRA-sim's units and with its rounding, against the results of its analytical network.
//!
//! ```text
//! ASTRA-sim's input    means                                  here
//! bandwidth 50         50 GiB/s, though the unit is called GB/slink(50.0, ..)
//! a message            floor_ns(latency + bytes / bandwidth)   Rounding::WholeNanos
//! endpoint-delay 10    10 ns per message, and once at the end  Costs::overhead, Costs::launch
//! local-mem-bw 1600    a reduction passes memory three times   Costs::memory, Costs::reduce_passes
//! comm_size            input of one rank for all-gather,       bytes(..)
//!                      the whole buffer for the others
//! ```
//!
//! Our own runs use SI units and picoseconds. ASTRA-sim's time for a ring all-reduce is reproduced to the
//! nanosecond. Where ASTRA-sim returns a time that no machine can reach, this crate does not, as these tests show. Source: the
//! analytical network backend of <https://github.com/astra-sim/astra-sim>.

use allfold_schedules::registry::{self, Shape};
use allfold_schedules::{Collective, Geometry};
use allfold_sim::{BytesPerSec, Costs, Link, Picos, Rounding, Topology};
use allfold_timing::{Engine, Error, Job, Outcome, simulate};

/// The costs of messages and reductions with ASTRA-sim's usual system file: `endpoint-delay` 10 ns, `local-mem-bw` 1,600.
const COSTS: Costs = Costs {
    overhead: Picos::from_nanos(10),
    launch: Picos::from_nanos(10),
    memory: Some(BytesPerSec(1_600_000_000_000)),
    reduce_passes: 3,
    rounding: Rounding::WholeNanos,
};

/// A link as ASTRA-sim's network file gives it: `bandwidth` is called GB/s there but computed as GiB/s, `latency` is in
/// nanoseconds.
fn link(bandwidth: f64, latency: u64) -> Link {
    const GIB: f64 = (1u64 << 30) as f64;
    Link { bandwidth: BytesPerSec((bandwidth * GIB).round() as u64), latency: Picos::from_nanos(latency) }
}

/// The bytes of the whole buffer, as [`allfold_schedules::Geometry`] counts it, for ASTRA-sim's `comm_size`. `None` if the number
/// does not fit 64 bits.
fn bytes(collective: Collective, comm_size: u64, ranks: u32) -> Option<u64> {
    match collective {
        Collective::AllGather => comm_size.checked_mul(u64::from(ranks)),
        _ => Some(comm_size),
    }
}

const MIB: u64 = 1 << 20;

/// Times a collective over `comm_size` bytes on 50 "GB/s" links; `not` are times in nanoseconds that violate the run's bounds.
fn run(what: Collective, algorithm: &str, comm_size: u64, topology: &Topology, not: &[u64]) -> Outcome {
    let ranks = topology.ranks();
    let schedule = registry::find(what, algorithm).unwrap().build(Shape::new(ranks).unwrap()).unwrap();
    let bytes = bytes(what, comm_size, ranks).unwrap();
    let geometry = match what.blocked() {
        true => Geometry::blocked(&*schedule, bytes / u64::from(ranks)),
        false => Geometry::whole(&*schedule, bytes),
    };
    let job = Job { costs: COSTS, collective: Some(what), ..Job::new(&*schedule, &geometry, 1, topology) };
    let full = simulate(&job, Engine::Full).unwrap();
    if let Ok(by_symmetry) = simulate(&job, Engine::BySymmetry) {
        assert_eq!(by_symmetry.time, full.time);
    }
    for &nanos in not {
        let refused = full.bounds.check(Picos::from_nanos(nanos), &job);
        assert!(matches!(refused, Err(Error::BeatsBound { .. })), "{nanos} ns for {what} by {algorithm}");
    }
    full
}

/// A switch with a latency of 500 ns on each path.
fn switch(ranks: u32) -> Topology {
    Topology::switch(ranks, link(50.0, 250)).unwrap()
}

#[test]
fn its_ring_all_reduce_is_reproduced_to_the_nanosecond() {
    let published =
        [(8, 43_025), (64, 104_590), (256, 300_400), (1024, 1_082_344), (2048, 2_124_796), (4096, 4_209_670)];
    for (ranks, nanos) in published {
        let topology = Topology::ring(ranks, link(50.0, 500)).unwrap();
        let ours = run(Collective::AllReduce, "ring", MIB, &topology, &[]);
        assert_eq!(ours.time, Picos::from_nanos(nanos), "{ranks} ranks");
    }
}

#[test]
fn a_broadcast_takes_longer_than_the_nanosecond_it_gives_it() {
    for row in registry::of(Collective::Broadcast) {
        let ours = run(Collective::Broadcast, row.name, MIB, &switch(8), &[1]);
        // The time of 1 MiB into a port of 50 GiB/s.
        assert!(ours.time >= Picos::from_nanos(19_531), "{}: {}", row.name, ours.time);
    }
}

#[test]
fn a_switch_does_not_store_whole_messages_before_it_forwards_them() {
    // ASTRA-sim's congestion-aware switch takes 71.8 ms for the all-reduce that its ring of links does in 36.8 ms.
    let ring = Topology::ring(8, link(50.0, 500)).unwrap();
    let ours = run(Collective::AllReduce, "ring", 1 << 30, &switch(8), &[]);
    assert_eq!(ours.time, run(Collective::AllReduce, "ring", 1 << 30, &ring, &[]).time);
    assert_eq!(ours.time.0 / 100_000_000, 367, "{}", ours.time);
}

#[test]
fn a_direct_all_reduce_sends_its_bytes_through_one_port() {
    // ASTRA-sim's congestion-unaware network takes 7,155 ns for bytes that need 34,180 ns through a port.
    let ours = run(Collective::AllReduce, "direct", MIB, &switch(8), &[7_155, 34_150]);
    assert!(ours.bounds.collective >= Picos::from_nanos(34_179), "{:?}", ours.bounds);
    assert!(ours.time > ours.bounds.collective);
}

#[test]
fn comm_size_is_one_rank_s_input_of_an_all_gather_and_the_whole_buffer_of_a_reduce_scatter() {
    assert_eq!(bytes(Collective::AllGather, MIB, 8), Some(8 * MIB));
    assert_eq!(bytes(Collective::ReduceScatter, MIB, 8), Some(MIB));
    assert_eq!(bytes(Collective::AllGather, u64::MAX, 8), None);
    // If `comm_size` were the whole buffer, an all-gather would be eight times faster than its bound.
    let scatter = run(Collective::ReduceScatter, "ring", MIB, &switch(8), &[]);
    let gather = run(Collective::AllGather, "ring", MIB, &switch(8), &[scatter.time.0 / 1_000]);
    // The time of 7 x 1 MiB into a port of 50 GiB/s.
    assert!(gather.time >= Picos::from_nanos(136_718), "{}", gather.time);
}
