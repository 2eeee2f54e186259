//! Steps one of two lanes of which the second is the mirror image of the first.
//!
//! ```text
//! nodes      0  1  2  3  4  5        lane 0 sends through a link of node 1 what lane 1 sends through that of node 4, at the
//! lane 0     a  b  c  d  e  f        same time. So the links of both nodes carry the same, and one link with the flows that
//! lane 1     f  e  d  c  b  a        lane 0 has on both stands for each of them.
//! ```
//!
//! Every rank is stepped, in one lane instead of two, with times that are equal to the picosecond. It needs mirrored links, equal
//! shares of the data, no fault rules and no deadline, and a window that holds all steps of a rank: otherwise a step of one lane may
//! wait for the other lane's steps.

use super::representatives::Rerouted;
use super::{AllRanks, Error, Job, Method, Outcome, events};
use allfold_schedules::Geometry;
use allfold_schedules::schedule::{MirroredLanes, Rank, Schedule};
use allfold_sim::LinkId;
use std::iter::successors;

/// Times a job by the first of its lanes; `None` if that lane does not represent both.
pub(crate) fn run(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    let Some(MirroredLanes { block, lane }) = job.schedule.mirrored_lanes() else { return Ok(None) };
    let unit = job.topology.symmetry().mirrors.filter(|unit| block.is_multiple_of(*unit));
    let equal = job.geometry.is_equal() && job.faults.is_empty() && job.deadline.is_none();
    if unit.is_none() || !equal || !holds_all_steps(job) {
        return Ok(None);
    }
    let geometry = Geometry::whole(&*lane, job.geometry.count() / 2);
    let one = Job { schedule: &*lane, geometry: &geometry, collective: None, ..*job };
    let topology = job.topology;
    // The link that stands for a link and for that of the mirrored ranks: the one with the smaller number.
    let class = |link: LinkId| LinkId(link.0.min(topology.mirrored_link(link, block).0));
    let all_ranks = AllRanks::of(topology, job.faults);
    let cast = Rerouted::new(&all_ranks, |crossing| crossing.link = class(crossing.link));
    let mut run = events::run(&one, &cast, None)?.times(2);
    let finish = |rank: Rank| run.finish[rank.index()];
    let ranks = (0..topology.ranks()).map(Rank);
    run.finish = ranks.map(|rank| finish(rank).max(finish(rank.mirrored(block, topology.ranks())))).collect();
    run.links = (0..topology.links()).map(|link| run.links[class(LinkId(link)).0 as usize]).collect();
    Ok(Some(Outcome { folded: 2, ..run.outcome(job, &all_ranks, Method::Events)? }))
}

/// Whether a window holds all steps of any rank.
fn holds_all_steps(job: &Job<'_>) -> bool {
    let (of, pieces): (&dyn Schedule, u64) = match job.schedule.pipeline() {
        Some(pipeline) => (pipeline.of, pipeline.pieces),
        None => (job.schedule, 1),
    };
    let steps = |rank| successors(of.next(rank, 0), move |round| of.next(rank, round + 1)).count() as u64;
    (0..of.ranks()).all(|rank| steps(Rank(rank)) * pieces <= job.window.into())
}
