//! The sequence of steps of each representative.
//!
//! ```text
//! piece 0     r0 r3 r5            a representative's rounds with one piece, stored once; the rounds of the next piece
//! piece 1        r0 r3 r5         are a lap later. The next step is the least of as many rounds as a piece has steps.
//! ```
//!
//! If a schedule is not a pipeline, or a rank has too many steps with a piece to store them, every step is computed by the schedule.

use super::Representatives;
use allfold_schedules::schedule::{Rank, Schedule, Span, Step};

/// The greatest number of steps with one piece that are stored for a rank.
const REMEMBERED: usize = 32;

/// A representative's next step: the round, the step, the lane.
pub(super) type Next = (u64, Step, u32);

/// The programs of all representatives, each with its current position.
#[derive(Clone)]
pub(super) struct Programs<'a> {
    schedule: &'a dyn Schedule,
    /// The next round to request from the schedule, for each representative; used if steps are not stored.
    rounds: Vec<u64>,
    loops: Option<Loops>,
}

/// The stored steps of a pipeline: representative r has the entries `starts[r] .. starts[r + 1]`.
#[derive(Clone)]
struct Loops {
    pieces: u64,
    lap: u64,
    starts: Vec<u32>,
    /// For each stored step, the round of its next piece; `u64::MAX` after the last piece.
    due: Vec<u64>,
    steps: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    step: Step,
    lane: u32,
    piece: u32,
}

impl<'a> Programs<'a> {
    pub(super) fn new(schedule: &'a dyn Schedule, cast: &impl Representatives) -> Programs<'a> {
        let loops = Loops::new(schedule, cast);
        let rounds = if loops.is_none() { vec![0; cast.representatives() as usize] } else { Vec::new() };
        Programs { schedule, rounds, loops }
    }

    /// A representative's next step; `None` at the end of its program.
    pub(super) fn next(&mut self, representative: u32, rank: Rank) -> Option<Next> {
        if let Some(loops) = &mut self.loops {
            return loops.next(representative);
        }
        let from = &mut self.rounds[representative as usize];
        if *from == u64::MAX {
            return None;
        }
        let round = self.schedule.next(rank, *from);
        *from = round.map_or(u64::MAX, |round| round + 1);
        round.map(|round| (round, self.schedule.step(rank, round), self.schedule.lane(round)))
    }

    /// The piece of a representative's next step; 0 if steps are not stored.
    pub(super) fn upcoming(&self, representative: u32) -> u32 {
        let next = |loops: &Loops| loops.earliest(representative).map(|(at, _)| loops.steps[at].piece);
        self.loops.as_ref().and_then(next).unwrap_or(0)
    }

    /// The number of pieces; `None` if steps are not stored.
    pub(super) fn pieces(&self) -> Option<u64> {
        self.loops.as_ref().map(|loops| loops.pieces)
    }

    /// The number of rounds from one piece to the next; 0 if steps are not stored.
    pub(super) fn lap(&self) -> u64 {
        self.loops.as_ref().map_or(0, |loops| loops.lap)
    }

    /// Whether a representative has any stored steps.
    pub(super) fn has_steps(&self, representative: u32) -> bool {
        self.loops.as_ref().is_some_and(|loops| !loops.of(representative).is_empty())
    }

    /// For each of a representative's stored steps, the next piece that it will work on; `None` after the last piece.
    pub(super) fn begun(&self, representative: u32) -> impl Iterator<Item = Option<u64>> + '_ {
        let at =
            |loops: &Loops, at: usize| (loops.due[at] < u64::MAX).then_some(loops.steps[at].piece.into());
        self.loops.iter().flat_map(move |loops| loops.of(representative).map(move |step| at(loops, step)))
    }

    /// Advances all programs by whole pieces and returns the number of rounds that this is.
    pub(super) fn jump(&mut self, pieces: u64) -> u64 {
        let Some(loops) = &mut self.loops else { return 0 };
        let rounds = pieces * loops.lap;
        loops.due.iter_mut().for_each(|due| *due += rounds);
        loops.steps.iter_mut().for_each(|step| step.piece += pieces as u32);
        rounds
    }

    /// Whether a representative has issued all its steps.
    pub(super) fn is_over(&self, representative: u32, rank: Rank) -> bool {
        match &self.loops {
            Some(loops) => loops.of(representative).all(|at| loops.due[at] == u64::MAX),
            None => {
                let from = self.rounds[representative as usize];
                from == u64::MAX || self.schedule.next(rank, from).is_none()
            }
        }
    }
}

impl Loops {
    fn new(schedule: &dyn Schedule, cast: &impl Representatives) -> Option<Loops> {
        let pipeline = schedule.pipeline().filter(|pipeline| pipeline.pieces > 1)?;
        let (of, pieces, lap) = (pipeline.of, pipeline.pieces, pipeline.lap);
        let mut loops = Loops { pieces, lap, starts: vec![0], due: Vec::new(), steps: Vec::new() };
        for representative in 0..cast.representatives() {
            let rank = cast.rank(representative);
            let (first, mut from) = (loops.due.len(), 0);
            while let Some(round) = of.next(rank, from) {
                if loops.due.len() - first == REMEMBERED {
                    return None;
                }
                loops.due.push(round * pieces);
                loops.steps.push(Entry { step: of.step(rank, round), lane: of.lane(round), piece: 0 });
                from = round + 1;
            }
            loops.starts.push(u32::try_from(loops.due.len()).ok()?);
        }
        Some(loops)
    }

    fn of(&self, representative: u32) -> std::ops::Range<usize> {
        self.starts[representative as usize] as usize..self.starts[representative as usize + 1] as usize
    }

    /// The index and the round of a representative's next stored step.
    fn earliest(&self, representative: u32) -> Option<(usize, u64)> {
        let all = self.of(representative).map(|at| (at, self.due[at]));
        all.min_by_key(|&(_, due)| due).filter(|&(_, due)| due < u64::MAX)
    }

    fn next(&mut self, representative: u32) -> Option<Next> {
        let (at, round) = self.earliest(representative)?;
        let Entry { step, lane, piece } = self.steps[at];
        let over = u64::from(piece) + 1 == self.pieces;
        self.due[at] = if over { u64::MAX } else { round + self.lap };
        self.steps[at].piece += 1;
        let cut = |span: Span| Span { segment: piece, ..span };
        let send = step.send.map(|(to, span)| (to, cut(span)));
        let recv = step.recv.map(|(from, span, how)| (from, cut(span), how));
        Some((round, Step { send, recv }, lane))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AllRanks;
    use allfold_schedules::algorithms::{RingAllReduce, double_binary_tree};
    use allfold_schedules::schedule::{Segments, then_reverse};
    use allfold_sim::{Faults, Topology};

    fn check(schedule: &dyn Schedule) {
        let (topology, faults) = (Topology::named("switch", schedule.ranks()).unwrap(), Faults::NONE);
        let mut programs = Programs::new(schedule, &AllRanks::of(&topology, &faults));
        for representative in 0..schedule.ranks() {
            let (rank, mut from) = (Rank(representative), 0);
            while let Some(round) = schedule.next(rank, from) {
                assert!(!programs.is_over(representative, rank));
                let expected = (round, schedule.step(rank, round), schedule.lane(round));
                assert_eq!(programs.next(representative, rank), Some(expected));
                from = round + 1;
            }
            assert!(programs.is_over(representative, rank));
            assert_eq!(programs.next(representative, rank), None);
        }
    }

    #[test]
    fn remembered_steps_are_those_of_the_schedule() {
        for pieces in [1, 2, 7, 30] {
            check(&Segments::new(double_binary_tree(13, Rank(0), then_reverse), pieces));
            check(&Segments::new(RingAllReduce(5), pieces));
            check(&Segments::new(RingAllReduce(40), pieces));
            check(&Segments::with_stride(RingAllReduce(6), pieces, 3));
        }
    }
}
