//! Where a chunk's elements lie in the buffer.

use crate::schedule::{Rank, Schedule, Span};
use std::ops::Range;

/// How a buffer of `count` elements is cut for one schedule.
///
/// Unblocked collectives cut the whole buffer into near-equal chunks: the first `count % chunks` have one element
/// more. Blocked ones ([`crate::Collective::blocked`]) first give every rank an equal block, block r at
/// `r * count / ranks`, and cut each block among the chunks whose [`Schedule::home`] is that rank, in order.
/// A segment is cut from a chunk by the same near-equal rule.
#[derive(Clone, Debug)]
pub struct Geometry {
    count: u64,
    chunks: u32,
    segments: u32,
    /// For a blocked collective whose blocks are not in chunk order: (start, length) of each chunk.
    places: Option<Vec<(u64, u64)>>,
}

/// The `i`-th of `parts` near-equal parts of `total`: the first `total % parts` have one element more.
fn part(total: u64, parts: u64, i: u64) -> Range<u64> {
    let (small, larger) = (total / parts, total % parts);
    let at = |i: u64| i * small + i.min(larger);
    at(i)..at(i + 1)
}

impl Geometry {
    /// The cut of a buffer that is not made of blocks.
    pub fn whole(schedule: &(impl Schedule + ?Sized), count: u64) -> Geometry {
        Geometry { count, chunks: schedule.chunks(), segments: schedule.segments(), places: None }
    }

    /// The cut of a buffer of one block per rank, `block` elements each.
    pub fn blocked(schedule: &(impl Schedule + ?Sized), block: u64) -> Geometry {
        let (ranks, chunks) = (schedule.ranks(), schedule.chunks());
        let homes: Vec<Rank> = (0..chunks).map(|c| schedule.home(c)).collect();
        let mut shares = vec![0u64; ranks as usize];
        homes.iter().for_each(|home| shares[home.index()] += 1);
        let mut seen = vec![0u64; ranks as usize];
        let places = homes
            .iter()
            .map(|home| {
                let nth = &mut seen[home.index()];
                let range = part(block, shares[home.index()], *nth);
                *nth += 1;
                (u64::from(home.0) * block + range.start, range.end - range.start)
            })
            .collect();
        let count = u64::from(ranks) * block;
        Geometry { count, chunks, segments: schedule.segments(), places: Some(places) }
    }

    /// Elements in the whole buffer.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The elements of one chunk.
    pub fn chunk(&self, chunk: u32) -> Range<u64> {
        match &self.places {
            None => part(self.count, u64::from(self.chunks), u64::from(chunk)),
            Some(places) => {
                let (start, len) = places[chunk as usize];
                start..start + len
            }
        }
    }

    /// The elements of one segment of one chunk.
    pub fn piece(&self, chunk: u32, segment: u32) -> Range<u64> {
        let whole = self.chunk(chunk);
        let cut = part(whole.end - whole.start, u64::from(self.segments), u64::from(segment));
        whole.start + cut.start..whole.start + cut.end
    }

    /// The elements of a span, a range per chunk in order of chunks. Ranges that touch are not joined.
    pub fn ranges(&self, span: Span) -> impl Iterator<Item = Range<u64>> + '_ {
        (span.at..span.at + span.len).map(move |chunk| self.piece(chunk, span.segment))
    }

    /// How many elements a span holds. Constant time where chunks are near-equal.
    pub fn elements(&self, span: Span) -> u64 {
        if self.places.is_some() {
            return self.ranges(span).map(|r| r.end - r.start).sum();
        }
        let chunks = u64::from(self.chunks);
        let (small, larger) = (self.count / chunks, self.count % chunks);
        let (from, to) = (u64::from(span.at), u64::from(span.at + span.len));
        let big = to.min(larger).saturating_sub(from);
        let piece = |chunk: u64| {
            let cut = part(chunk, u64::from(self.segments), u64::from(span.segment));
            cut.end - cut.start
        };
        big * piece(small + 1) + (to - from - big) * piece(small)
    }
}
