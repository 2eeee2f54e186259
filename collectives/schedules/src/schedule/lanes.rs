//! Several schedules side by side, each on its own share of the chunks.
//!
//! ```text
//! data    | chunks of lane 0 | chunks of lane 1 |      round 0: lane 0's round 0      round 2: lane 0's round 1
//!                                                      round 1: lane 1's round 0      round 3: lane 1's round 1
//! ```
//!
//! Channels, rails and the two halves of a double tree are lanes: messages of one lane never wait for another lane's messages.

use super::{Permutation, Rank, Schedule, Span, Step};

/// Schedules side by side: lane l runs schedule number l, and the rounds of the lanes interleave.
#[derive(Clone, Debug)]
pub struct Lanes<S> {
    lanes: Vec<Lane<S>>,
    rounds: u64,
    stride: u64,
    /// Whether all lanes run the same schedule.
    replicated_lanes: bool,
    /// The block of ranks in which the second of two lanes is the mirror image of the first.
    mirrored: Option<u32>,
}

/// The first of two lanes, of which the second is the mirror image: what a rank does in the first lane, its [`Rank::mirrored`] rank
/// does in the second.
pub struct MirroredLanes<'a> {
    /// The number of ranks of a block.
    pub block: u32,
    /// The schedule of the first lane.
    pub lane: Box<dyn Schedule + 'a>,
}

#[derive(Clone, Debug)]
struct Lane<S> {
    of: S,
    /// The first chunk of the lane's share.
    from: u32,
    /// The number of the first lane of schedule `of`. A schedule that has lanes itself takes several numbers.
    first: u32,
}

impl<S: Schedule> Lanes<S> {
    /// Runs these schedules, one or more, side by side.
    ///
    /// # Panics
    /// There is no schedule, or the schedules differ in ranks or segments.
    pub fn new(schedules: Vec<S>) -> Lanes<S> {
        let replicated_lanes = |of: &S| (of.ranks(), of.segments());
        assert!(!schedules.is_empty(), "a schedule has one lane at least");
        assert!(
            schedules.windows(2).all(|two| replicated_lanes(&two[0]) == replicated_lanes(&two[1])),
            "lanes must have the same numbers of ranks and segments"
        );
        let longest = schedules.iter().map(S::rounds).max().unwrap_or(0);
        let (mut from, mut first) = (0, 0);
        let lanes: Vec<Lane<S>> = schedules
            .into_iter()
            .map(|of| {
                let lane = Lane { from, first, of };
                from += lane.of.chunks();
                first += lane.of.lanes();
                lane
            })
            .collect();
        // A rank's ports serve one lane after another, so the strides add up.
        let stride = lanes.iter().map(|lane| lane.of.stride()).max().unwrap_or(0) * lanes.len() as u64;
        Lanes { rounds: longest * lanes.len() as u64, lanes, stride, replicated_lanes: false, mirrored: None }
    }

    /// These lanes with another stride. A smaller stride is possible if no rank is busy in all lanes at the same time.
    pub fn at_stride(self, stride: u64) -> Lanes<S> {
        Lanes { stride, ..self }
    }

    /// These two lanes, of which the second is the mirror image of the first in blocks of `block` ranks
    /// ([`Schedule::mirrored_lanes`]).
    pub fn mirrored(self, block: u32) -> Lanes<S> {
        Lanes { mirrored: Some(block), ..self }
    }

    /// `count` lanes of the same schedule.
    pub fn split(of: S, count: usize) -> Lanes<S>
    where
        S: Clone,
    {
        Lanes { replicated_lanes: true, ..Lanes::new(vec![of; count]) }
    }

    /// The lane of a round, and the round within that lane's schedule.
    fn at(&self, round: u64) -> (&Lane<S>, u64) {
        let count = self.lanes.len() as u64;
        (&self.lanes[(round % count) as usize], round / count)
    }
}

impl<S: Schedule> Schedule for Lanes<S> {
    fn ranks(&self) -> u32 {
        self.lanes[0].of.ranks()
    }
    fn chunks(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.of.chunks()).sum()
    }
    fn rounds(&self) -> u64 {
        self.rounds
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (lane, round) = self.at(round);
        if round >= lane.of.rounds() {
            return Step::IDLE;
        }
        lane.of.step(rank, round).map(|peer| peer, |span: Span| span.refined(1, lane.from))
    }
    fn next(&self, rank: Rank, round: u64) -> Option<u64> {
        let count = self.lanes.len() as u64;
        let ahead = |l: u64, lane: &Lane<S>| {
            let from = round.saturating_sub(l).div_ceil(count);
            Some(lane.of.next(rank, from)? * count + l)
        };
        (0..count).zip(&self.lanes).filter_map(|(l, lane)| ahead(l, lane)).min()
    }
    fn symmetry(&self) -> Vec<Permutation> {
        let all = self.lanes.iter().map(|lane| lane.of.symmetry());
        all.reduce(|a, b| Permutation::common(&a, &b)).unwrap_or_default()
    }
    fn lanes(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.of.lanes()).sum()
    }
    fn lane(&self, round: u64) -> u32 {
        let (lane, round) = self.at(round);
        lane.first + if round < lane.of.rounds() { lane.of.lane(round) } else { 0 }
    }
    fn segments(&self) -> u32 {
        self.lanes[0].of.segments()
    }
    fn stride(&self) -> u64 {
        self.stride
    }
    fn replicated_lanes(&self) -> Option<(u32, &dyn Schedule)> {
        self.replicated_lanes.then(|| (self.lanes.len() as u32, &self.lanes[0].of as &dyn Schedule))
    }
    fn mirrored_lanes(&self) -> Option<MirroredLanes<'_>> {
        self.mirrored.map(|block| MirroredLanes { block, lane: Box::new(&self.lanes[0].of) })
    }
    fn owner(&self, chunk: u32) -> Rank {
        let next = self.lanes.partition_point(|lane| lane.from <= chunk);
        let lane = &self.lanes[next - 1];
        lane.of.owner(chunk - lane.from)
    }
}
