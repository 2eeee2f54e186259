//! Merges equal lanes of a schedule into one lane.
//!
//! ```text
//! 16 lanes of one schedule, W x 16 steps     ->     one lane, W steps, every flow has weight 16 on its links
//! ```
//!
//! Lanes that run the same schedule on equal shares of the data act in the same way at the same time: their messages take the same links
//! and share them evenly, and in every rank's program each step of one lane is followed by the same step of the other lanes. Stepping one
//! lane is therefore exact. It needs a named collective without blocks, equal chunks, and a window that is a multiple of the number of
//! lanes. Fault rules that are not steady, and a deadline, prevent it.

use super::representatives::replicated;
use super::{AllRanks, Error, Job, Method, Outcome, by_symmetry, events, mirrored_lanes};
use allfold_schedules::Geometry;
use allfold_schedules::schedule::Schedule;

/// Times a job by one of its lanes; `None` if no lane represents all lanes (see [`Lane::of`]). `symmetry` allows one representative
/// per symmetry class.
pub(crate) fn run(job: &Job<'_>, symmetry: bool) -> Result<Option<Outcome>, Error> {
    let Some(lane) = Lane::of(job) else { return mirrored_lanes::run(job) };
    let (one, lanes) = (lane.job(job), lane.lanes);
    if symmetry {
        match by_symmetry::folded(&one, job, lanes) {
            Err(Error::NoSymmetry { .. }) => {}
            found => return found.map(Some),
        }
    }
    let all_ranks = AllRanks::of(job.topology, job.faults);
    let run = events::run(&one, &replicated(&all_ranks, lanes), None)?;
    let outcome = run.times(lanes).outcome(job, &all_ranks, Method::Events)?;
    Ok(Some(Outcome { folded: lanes, ..outcome }))
}

/// One of several equal lanes.
pub(crate) struct Lane<'a> {
    schedule: &'a dyn Schedule,
    geometry: Geometry,
    /// The number of equal lanes that this lane represents.
    pub lanes: u32,
}

impl<'a> Lane<'a> {
    /// The lane that represents all lanes of the job; `None` if the job has one lane or one lane cannot represent all.
    pub fn of(job: &Job<'a>) -> Option<Lane<'a>> {
        let (lanes, schedule) = job.schedule.replicated_lanes().filter(|(lanes, _)| *lanes > 1)?;
        let whole = job.collective.is_some_and(|collective| !collective.blocked());
        let rows = job.window.is_multiple_of(lanes) && job.geometry.is_equal();
        if !whole || !rows || !job.faults.is_steady() || job.deadline.is_some() {
            return None;
        }
        let geometry = Geometry::whole(schedule, job.geometry.count() / u64::from(lanes));
        Some(Lane { schedule, geometry, lanes })
    }

    /// The job of this lane alone, in place of `whole`.
    pub fn job<'b>(&'b self, whole: &Job<'b>) -> Job<'b> {
        let window = whole.window / self.lanes;
        Job { schedule: self.schedule, geometry: &self.geometry, window, collective: None, ..*whole }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Engine, simulate};
    use super::*;
    use allfold_schedules::algorithms::{RingAllReduce, double_binary_tree};
    use allfold_schedules::schedule::{Lanes, Rank, Segments, then_reverse};
    use allfold_schedules::{Collective, algorithms::halving_doubling};
    use allfold_sim::{Sharing, Topology};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn any_lane(ranks: u32, kind: usize, pieces: u32) -> Segments<Arc<dyn Schedule>> {
        let of: Arc<dyn Schedule> = match kind {
            0 => Arc::new(RingAllReduce(ranks)),
            1 => Arc::new(double_binary_tree(ranks, Rank(0), then_reverse)),
            _ => Arc::new(halving_doubling(ranks)),
        };
        Segments::new(of, pieces)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Compares stepping every lane with stepping one lane for all.
        #[test]
        fn lanes_that_are_alike_take_the_time_of_one(
            ranks in 2u32..17, kind in 0usize..3, pieces in 1u32..20, lanes in 2u32..5, window in 1u32..9, wiring in 0usize..4,
            max_min in any::<bool>(),
        ) {
            let schedule = Lanes::split(any_lane(ranks, kind, pieces), lanes as usize);
            let count = u64::from(schedule.chunks() * pieces) * 1_000;
            let geometry = Geometry::whole(&schedule, count);
            let topology = Topology::named(["switch", "nodes4", "nodes8x2", "ring"][wiring], ranks).unwrap();
            let job = Job {
                window: window * lanes,
                sharing: if max_min { Sharing::MaxMin } else { Sharing::Split }.into(),
                collective: Some(Collective::AllReduce),
                ..Job::new(&schedule, &geometry, 4, &topology)
            };
            let stepped = simulate(&job, Engine::Events).unwrap();
            let folded = simulate(&job, Engine::Full).unwrap();
            prop_assert_eq!(folded.folded, lanes);
            prop_assert_eq!((stepped.time, &stepped.finish), (folded.time, &folded.finish));
            prop_assert_eq!((stepped.messages, stepped.bytes, &stepped.links), (folded.messages, folded.bytes, &folded.links));
            let bounds = |outcome: &Outcome| (outcome.bounds.links, outcome.bounds.collective);
            prop_assert_eq!(bounds(&stepped), bounds(&folded));
            prop_assert_eq!(simulate(&job, Engine::Auto).unwrap().time, folded.time);
        }
    }

    #[test]
    fn lanes_that_are_not_alike_are_stepped_one_by_one() {
        let schedule = Lanes::split(Segments::new(RingAllReduce(4), 2), 3);
        let topology = Topology::named("switch", 4).unwrap();
        for (count, window, folded) in [(24_000, 3, 3), (24_000, 4, 1), (24_001, 3, 1)] {
            let geometry = Geometry::whole(&schedule, count);
            let collective = Some(Collective::AllReduce);
            let job = Job { window, collective, ..Job::new(&schedule, &geometry, 4, &topology) };
            assert_eq!(simulate(&job, Engine::Full).unwrap().folded, folded, "{count} {window}");
        }
    }
}
