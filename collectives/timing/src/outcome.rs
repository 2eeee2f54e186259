//! The result of a timed run.

use super::run::Run;
use super::{Bounds, Error, Job, Representatives};
use allfold_sim::{Bytes, Picos};

allfold_sim::named! {
    /// The engine that computed a time.
    pub enum Method {
        /// A clock per rank; no link was shared.
        Clocks = "clocks",
        /// An event queue, with shared links.
        Events = "events",
        /// A clock per symmetry class.
        ClocksBySymmetry = "clocks_by_symmetry",
        /// An event queue over symmetry classes, with each link weighted by the number of flows of a class that cross it.
        EventsBySymmetry = "events_by_symmetry",
        /// A sweep in order of rounds over links that serve one message at a time.
        SerialLinks = "serial_links",
    }
}

/// The result of [`simulate`](super::simulate).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When the last rank is done.
    pub time: Picos,
    /// When each representative is done: each rank, or one representative of each symmetry class, in order.
    pub finish: Vec<Picos>,
    /// Messages between ranks, over all ranks.
    pub messages: u64,
    /// Bytes in those messages, over all ranks.
    pub bytes: Bytes,
    /// A hash of every message with its time, independent of order: equal for equal runs, and for all methods that step all ranks
    /// and skip no messages. With [`Method::SerialLinks`], a hash of when each rank is done.
    pub event_hash: u64,
    /// How the time was found.
    pub method: Method,
    /// The lower bounds with which the time was compared.
    pub bounds: Bounds,
    /// Bytes over each link, by [`allfold_sim::LinkId`]; with symmetry classes, over one link of each class.
    pub links: Vec<Bytes>,
    /// The elements of the whole buffer after chunks were rounded up to equal sizes; `None` if they were not.
    pub rounded: Option<u64>,
    /// How many equal lanes each stepped lane represents; 1 if every lane was stepped.
    pub folded: u32,
    /// The number of messages that repeat earlier ones and were not timed one by one; a part of `messages`.
    pub skipped: u64,
}

impl Run {
    /// The outcome for all ranks.
    ///
    /// # Errors
    /// A time that is below one of its bounds, or does not fit 64 bits.
    pub fn outcome(
        self,
        job: &Job<'_>,
        cast: &impl Representatives,
        method: Method,
    ) -> Result<Outcome, Error> {
        let bounds = Bounds::of(job, cast, &self);
        let time = self.finish.iter().copied().max().unwrap_or_default();
        if time.0 == u64::MAX {
            return Err(Error::Overflow("the time in picoseconds"));
        }
        bounds.check(time, job)?;
        let class = u64::from(job.topology.ranks() / cast.representatives());
        let bytes = self.bytes.checked_mul(class).ok_or(Error::Overflow("the number of bytes sent"))?;
        Ok(Outcome {
            time,
            finish: self.finish,
            messages: self.messages * class,
            bytes: Bytes(bytes),
            event_hash: self.hash,
            method,
            bounds,
            links: self.links.into_iter().map(Bytes).collect(),
            rounded: None,
            folded: 1,
            skipped: self.skipped * class,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::AllRanks;
    use super::*;
    use allfold_schedules::Geometry;
    use allfold_schedules::algorithms::RingAllReduce;
    use allfold_sim::Topology;

    #[test]
    fn an_engine_that_is_too_fast_or_overflows_gets_no_outcome() {
        let schedule = RingAllReduce(2);
        let geometry = Geometry::whole(&schedule, 2);
        let topology = Topology::named("switch", 2).unwrap();
        let job = Job::new(&schedule, &geometry, 4, &topology);
        let all_ranks = AllRanks::of(&topology, job.faults);
        // A transfer of 3 bytes over a link of 300 GB/s takes 10 ps.
        let ended = |at: u64| {
            let run = Run { finish: vec![Picos(0), Picos(at)], links: vec![3, 0, 0, 0], ..Run::default() };
            run.outcome(&job, &all_ranks, Method::Clocks)
        };
        assert_eq!(ended(9).unwrap_err(), Error::BeatsBound { time: 9, bound: 10, which: "links" });
        assert_eq!(ended(10).unwrap().time, Picos(10));
        assert!(matches!(ended(u64::MAX), Err(Error::Overflow(_))));
    }
}
