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

use super::{Error, Job, Method, Outcome, Representatives, events};
use allfold_schedules::Geometry;
use allfold_schedules::schedule::{MirroredLanes, Rank, Schedule};
use allfold_sim::{Crossing, Link, LinkId, Picos, Topology};
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
    let cast = MirroredLinks { topology: job.topology, block };
    let mut run = events::run(&one, &cast, None)?.times(2);
    let finish = |rank: Rank| run.finish[rank.index()];
    let ranks = (0..job.topology.ranks()).map(Rank);
    run.finish =
        ranks.map(|rank| finish(rank).max(finish(rank.mirrored(block, cast.representatives())))).collect();
    run.links = (0..cast.links()).map(|link| run.links[cast.class(LinkId(link)).0 as usize]).collect();
    Ok(Some(Outcome { folded: 2, ..run.outcome(job, &cast, Method::Events)? }))
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

/// All ranks of a topology, whose links are in pairs: each with the link of the mirrored ranks.
struct MirroredLinks<'a> {
    topology: &'a Topology,
    block: u32,
}

impl MirroredLinks<'_> {
    /// The link that stands for `link` and its mirror image: the one with the smaller number.
    fn class(&self, link: LinkId) -> LinkId {
        LinkId(link.0.min(self.topology.mirrored_link(link, self.block).0))
    }
}

impl Representatives for MirroredLinks<'_> {
    fn representatives(&self) -> u32 {
        self.topology.ranks()
    }
    fn rank(&self, representative: u32) -> Rank {
        Rank(representative)
    }
    fn representative(&self, rank: Rank) -> u32 {
        rank.0
    }
    fn links(&self) -> u32 {
        self.topology.links()
    }
    fn link(&self, link: LinkId) -> Link {
        self.topology.link(link)
    }
    fn route(&self, from: Rank, to: Rank, path: &mut Vec<Crossing>) -> Picos {
        let mut links = Vec::new();
        self.topology.route(from, to, &mut links);
        path.extend(links.iter().map(|link| Crossing { link: self.class(*link), weight: 1 }));
        links.iter().fold(Picos::ZERO, |sum, link| sum + self.topology.link(*link).latency)
    }
}
