//! Pipelining: every chunk is cut into segments, and each segment is processed by the whole schedule separately.
//!
//! ```text
//! stride 1      time  0  1  2  3  4        a piece starts `stride` rounds after the previous piece;
//!   piece 0          r0 r1 r2              at equal times the oldest piece comes first
//!   piece 1             r0 r1 r2
//!   piece 2                r0 r1 r2        stride 0: each round for all pieces, then the next round
//! ```
//!
//! Segments are cut from chunks, so every segment keeps the reduction tree of its chunk.

use super::{MirroredLanes, Permutation, Pipeline, Rank, Schedule, Span, Step};
use std::ops::Range;

/// A schedule whose chunks are cut into segments. Segments cannot be cut again.
#[derive(Clone, Copy, Debug)]
pub struct Segments<S> {
    of: S,
    count: u64,
    stride: u64,
    rounds: u64,
}

impl<S: Schedule> Segments<S> {
    /// Cuts a schedule into `count` segments (at least 1) that follow each other at the schedule's own stride.
    pub fn new(of: S, count: u32) -> Segments<S> {
        let stride = of.stride();
        Segments::with_stride(of, count, stride)
    }

    /// Cuts a schedule into `count` segments (at least 1) that follow each other at `stride`: with 0, each round is done for all
    /// segments before the next; with [`Schedule::rounds`], each segment is finished before the next.
    ///
    /// # Panics
    /// The schedule is already cut into segments.
    pub fn with_stride(of: S, count: u32, stride: u64) -> Segments<S> {
        assert_eq!(of.segments(), 1, "a schedule is cut into segments once");
        let (count, rounds) = (u64::from(count.max(1)), of.rounds());
        let time = if rounds == 0 { 0 } else { (count - 1) * stride + rounds };
        Segments { of, count, stride, rounds: time * count }
    }

    /// The segment that acts in a round and its round of the inner schedule; `None` if no segment acts.
    fn at(&self, round: u64) -> Option<(u32, u64)> {
        let (time, piece) = (round / self.count, round % self.count);
        let own = time.checked_sub(piece * self.stride)?;
        (own < self.of.rounds()).then_some((piece as u32, own))
    }
}

impl<S: Schedule> Schedule for Segments<S> {
    fn ranks(&self) -> u32 {
        self.of.ranks()
    }
    fn chunks(&self) -> u32 {
        self.of.chunks()
    }
    fn rounds(&self) -> u64 {
        self.rounds
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let Some((segment, own)) = self.at(round) else { return Step::IDLE };
        self.of.step(rank, own).map(|peer| peer, |span| Span { segment, ..span })
    }
    fn active(&self, rank: Rank) -> Range<u64> {
        let own = self.of.active(rank);
        let last = (self.count - 1) * (self.stride * self.count + 1);
        if own.is_empty() { own } else { own.start * self.count..(own.end - 1) * self.count + last + 1 }
    }
    /// Segment s does round i of the inner schedule in round i * count + s * (stride * count + 1). For every inner round in which
    /// the rank acts, this finds the first segment from `round` on.
    fn next(&self, rank: Rank, round: u64) -> Option<u64> {
        let apart = self.stride * self.count + 1;
        let span = (self.count - 1) * apart;
        let mut best: Option<u64> = None;
        let mut from = round.saturating_sub(span).div_ceil(self.count);
        while let Some(own) = self.of.next(rank, from) {
            let first = own * self.count;
            if best.is_some_and(|best| best <= first) {
                break;
            }
            let at = first + round.saturating_sub(first).div_ceil(apart) * apart;
            best = Some(best.map_or(at, |best| best.min(at)));
            from = own + 1;
        }
        best
    }
    fn symmetry(&self) -> Vec<Permutation> {
        self.of.symmetry()
    }
    fn renumbers_chunks(&self) -> bool {
        self.of.renumbers_chunks()
    }
    fn lanes(&self) -> u32 {
        self.of.lanes()
    }
    fn lane(&self, round: u64) -> u32 {
        self.at(round).map_or(0, |(_, own)| self.of.lane(own))
    }
    fn segments(&self) -> u32 {
        self.count as u32
    }
    fn stride(&self) -> u64 {
        self.stride
    }
    fn pipeline(&self) -> Option<Pipeline<'_>> {
        Some(Pipeline { of: &self.of, pieces: self.count, lap: self.stride * self.count + 1 })
    }
    /// The rounds of both lanes alternate, so a lane has half of the stride.
    fn mirrored_lanes(&self) -> Option<MirroredLanes<'_>> {
        let MirroredLanes { block, lane } =
            self.of.mirrored_lanes().filter(|_| self.stride.is_multiple_of(2))?;
        let lane = Segments::with_stride(lane, self.count as u32, self.stride / 2);
        Some(MirroredLanes { block, lane: Box::new(lane) })
    }
    fn owner(&self, chunk: u32) -> Rank {
        self.of.owner(chunk)
    }
}
