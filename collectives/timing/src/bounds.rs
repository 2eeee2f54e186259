//! Lower bounds that no simulated time may beat; every run of every engine is compared with them.
//!
//! ```text
//! links        the bytes that crossed each link / its bandwidth                   the links' rate limits the time
//! chain        the longest chain of messages that wait for each other,            latency limits the time
//!              if none of them had any bytes
//! collective   the bytes that any algorithm must move through the ports           holds for every algorithm
//!              of ranks and nodes / the bandwidth of those ports
//! ```
//!
//! A time below a bound is a bug of the simulator: it becomes an [`Error::BeatsBound`] and is never returned.

use super::run::Run;
use super::{Error, Job, Representatives};
use allfold_schedules::Collective;
use allfold_schedules::meaning::Moves;
use allfold_sim::topology::PortGroup;
use allfold_sim::{LinkId, Picos, Rounding};

/// The lower bounds of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The bytes that crossed each link divided by its bandwidth: the greatest value over all links.
    pub links: Picos,
    /// The duration of the longest chain of messages that wait for each other, if messages had no bytes.
    pub chain: Picos,
    /// The time in which any algorithm for this collective can move the bytes through the ports of ranks and nodes; zero if the job
    /// does not name its collective.
    pub collective: Picos,
}

impl Bounds {
    pub(crate) fn of(job: &Job<'_>, cast: &impl Representatives, run: &Run) -> Bounds {
        let links = (0u32..)
            .zip(&run.links)
            .map(|(link, &bytes)| over(u128::from(bytes), u128::from(cast.link(LinkId(link)).bandwidth.0)));
        let bytes = u128::from(job.geometry.count()) * u128::from(job.element);
        let collective =
            job.collective.map(|what| Bounds::collective(what, bytes, &job.topology.port_groups()));
        Bounds {
            links: links.max().unwrap_or_default(),
            chain: run.chain,
            collective: collective.unwrap_or_default(),
        }
    }

    /// The least time in which any algorithm for collective `what` over `bytes` in all can move the bytes through each partition of
    /// the ranks into groups. Broadcast and reduction: E. Chan et al., "Collective communication: theory, practice, and
    /// experience", Concurrency and Computation 19 (2007), table I.
    fn collective(what: Collective, bytes: u128, partitions: &[PortGroup]) -> Picos {
        let bound = |group: &PortGroup| {
            let (ranks, size, count) =
                (u128::from(group.ranks), u128::from(group.size), u128::from(group.count));
            // The part of the buffer that belongs to ranks outside the group, with one block per rank.
            let others = bytes * (ranks - size) / ranks;
            match what.meaning().moves {
                Moves::Nothing => Picos::ZERO,
                // A sum needs count - 1 transfers to be combined, and count - 1 more to reach every group.
                Moves::Reduction => over(2 * (count - 1) * bytes, group.total),
                Moves::Whole => over(bytes, group.each),
                Moves::Others => over(others, group.each),
                Moves::Pairs => over(others * size, group.each),
            }
        };
        partitions.iter().map(bound).max().unwrap_or_default()
    }

    /// The greatest of the bounds, with its name.
    pub fn greatest(&self) -> (Picos, &'static str) {
        [(self.links, "links"), (self.chain, "chain"), (self.collective, "collective")]
            .into_iter()
            .max_by_key(|(bound, _)| *bound)
            .unwrap_or_default()
    }

    /// Checks that `time` is not below any bound. If times are cut to whole nanoseconds, as in ASTRA-sim, each round may be up to a
    /// nanosecond too fast.
    pub fn check(&self, time: Picos, job: &Job<'_>) -> Result<(), Error> {
        let cut = match job.costs.rounding {
            Rounding::Exact => 0,
            Rounding::WholeNanos => job.schedule.rounds().saturating_mul(1_000),
        };
        match self.greatest() {
            (bound, which) if time.0.saturating_add(cut) < bound.0 => {
                Err(Error::BeatsBound { time: time.0, bound: bound.0, which })
            }
            _ => Ok(()),
        }
    }
}

/// The time of `bytes` at a bandwidth in bytes per second, rounded down so that the bound is not too high.
fn over(bytes: u128, bandwidth: u128) -> Picos {
    Picos(u64::try_from(bytes * 1_000_000_000_000 / bandwidth.max(1)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_schedules::Geometry;
    use allfold_schedules::algorithms::RingAllReduce;
    use allfold_sim::Topology;

    #[test]
    fn a_ring_meets_the_bound_of_all_reduce_when_nothing_else_costs() {
        let link =
            allfold_sim::Link { bandwidth: allfold_sim::BytesPerSec(1_000_000_000), latency: Picos(0) };
        let bound = Bounds::collective(
            Collective::AllReduce,
            8_000,
            &Topology::switch(8, link).unwrap().port_groups(),
        );
        assert_eq!(bound, Picos::from_micros(14));
    }

    #[test]
    fn nodes_are_bound_by_their_nics() {
        let topology = Topology::named("nodes8x1", 32).unwrap();
        // The bound for 4 nodes is 2 x 3 x S / (4 x 25 GB/s).
        let bound = Bounds::collective(Collective::AllReduce, 1 << 30, &topology.port_groups());
        assert_eq!(bound, over(6 << 30, 100_000_000_000));
    }

    #[test]
    fn a_time_that_beats_a_bound_is_an_error_that_names_both() {
        let schedule = RingAllReduce(4);
        let geometry = Geometry::whole(&schedule, 1024);
        let topology = Topology::named("switch", 4).unwrap();
        let job = Job::new(&schedule, &geometry, 4, &topology);
        let bounds = Bounds { links: Picos(7), chain: Picos(9), collective: Picos(8) };
        assert_eq!(bounds.check(Picos(9), &job), Ok(()));
        let error = bounds.check(Picos(8), &job).unwrap_err();
        assert_eq!(error, Error::BeatsBound { time: 8, bound: 9, which: "chain" });
        assert!(error.to_string().contains("8 ps beats the chain bound of 9 ps"), "{error}");
    }
}
