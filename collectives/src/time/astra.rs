//! ASTRA-sim's units and rounding, so that a run can be held against its analytical network.
//!
//! ```text
//! its input            means                                  here
//! bandwidth 50         50 GiB/s, though the file says GB/s     link(50.0, ..)
//! a message            floor_ns(latency + bytes / bandwidth)   Rounding::WholeNanos
//! endpoint-delay 10    10 ns per message, and once at the end  Costs::overhead, Costs::launch
//! local-mem-bw 1600    a reduction passes memory three times   Costs::memory, Costs::reduce_passes
//! comm_size            input of one rank for all-gather,       bytes(..)
//!                      the whole buffer for the others
//! ```
//!
//! For compatibility only: our own runs use SI units and picoseconds. Its ring all-reduce is reproduced to the
//! nanosecond; where it returns what no machine can do, this does not, and the tests below say so.
//! Source: the analytical network backend of <https://github.com/astra-sim/astra-sim>.

use crate::Collective;
use allfold_sim::{BytesPerSec, Costs, Link, Picos, Rounding};

/// What a message and a reduction cost with ASTRA-sim's usual system file: `endpoint-delay` 10 ns, `local-mem-bw`
/// 1,600 bytes per nanosecond.
pub const COSTS: Costs = Costs {
    overhead: Picos::from_nanos(10),
    launch: Picos::from_nanos(10),
    memory: Some(BytesPerSec(1_600_000_000_000)),
    reduce_passes: 3,
    rounding: Rounding::WholeNanos,
};

/// A link of its network file: `bandwidth` in what it calls GB/s and computes as GiB/s, `latency` in nanoseconds.
pub fn link(bandwidth: f64, latency: u64) -> Link {
    const GIB: f64 = (1u64 << 30) as f64;
    Link { bandwidth: BytesPerSec((bandwidth * GIB).round() as u64), latency: Picos::from_nanos(latency) }
}

/// Bytes of the whole buffer, as [`crate::Geometry`] counts it, that its `comm_size` stands for. `None` where they
/// do not fit.
pub fn bytes(collective: Collective, comm_size: u64, ranks: u32) -> Option<u64> {
    match collective {
        Collective::AllGather => comm_size.checked_mul(u64::from(ranks)),
        _ => Some(comm_size),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Engine, Job, Outcome, simulate};
    use super::*;
    use crate::Geometry;
    use crate::algorithms::RingAllReduce;
    use crate::schedule::Schedule;
    use allfold_sim::Topology;

    const MIB: u64 = 1 << 20;

    fn run(collective: Collective, schedule: &dyn Schedule, bytes: u64, topology: &Topology) -> Outcome {
        let geometry = Geometry::whole(schedule, bytes);
        let job =
            Job { costs: COSTS, collective: Some(collective), ..Job::new(schedule, &geometry, 1, topology) };
        let full = simulate(&job, Engine::Full).unwrap();
        if let Ok(orbit) = simulate(&job, Engine::Orbit) {
            assert_eq!(orbit.time, full.time);
        }
        full
    }

    #[test]
    fn its_ring_all_reduce_is_reproduced_to_the_nanosecond() {
        let published = [
            (8, 43_025),
            (64, 104_590),
            (256, 300_400),
            (1024, 1_082_344),
            (2048, 2_124_796),
            (4096, 4_209_670),
        ];
        for (ranks, nanos) in published {
            let topology = Topology::ring(ranks, link(50.0, 500)).unwrap();
            let ours = run(Collective::AllReduce, &RingAllReduce(ranks), MIB, &topology);
            assert_eq!(ours.time, Picos::from_nanos(nanos), "{ranks} ranks");
        }
    }

    #[test]
    fn a_switch_does_not_store_whole_messages_before_it_forwards_them() {
        // Its congestion-aware switch takes 71.8 ms for what its own ring of links does in 36.8.
        let switch = Topology::switch(8, link(50.0, 250)).unwrap();
        let ring = Topology::ring(8, link(50.0, 500)).unwrap();
        let all_reduce = RingAllReduce(8);
        let ours = run(Collective::AllReduce, &all_reduce, 1 << 30, &switch);
        assert_eq!(ours.time, run(Collective::AllReduce, &all_reduce, 1 << 30, &ring).time);
        assert!((36_700_000..36_800_000).contains(&(ours.time.0 / 1_000)), "{}", ours.time);
        assert!(ours.time.0 < 2 * ours.bounds.links.0);
    }
}
