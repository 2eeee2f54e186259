//! The positions of a schedule's chunks and segments in the buffer.

use crate::schedule::{Rank, Schedule, Span};
use std::ops::Range;

/// How a buffer of `count` elements is cut into chunks and segments for one schedule.
///
/// An unblocked collective cuts the whole buffer into near-equal chunks: the first `count % chunks` chunks have one element more. A
/// blocked collective ([`crate::Collective::blocked`]) first gives every rank an equal block, block r at `r * count / ranks`, and
/// cuts each block among the chunks whose [`Schedule::owner`] is that rank, in order. Segments are cut from a chunk by the same
/// near-equal rule.
#[derive(Clone, Debug)]
pub struct Geometry {
    count: u64,
    chunks: u32,
    segments: u32,
    /// The two sizes of near-equal chunks, each cut into segments; the larger one first.
    sizes: [Cut; 2],
    /// The number of chunks that have the larger size.
    larger: u64,
    /// The positions of chunks, for a blocked collective whose chunks are not the near-equal chunks of the whole buffer in order.
    places: Option<Places>,
}

/// The position of each chunk, and the number of elements before it in order of chunks.
#[derive(Clone, Debug)]
struct Places {
    starts: Vec<u64>,
    before: Vec<u64>,
}

/// A chunk's size as sizes of segments: the first `longer` segments have one element more than `least`.
#[derive(Clone, Copy, Debug)]
struct Cut {
    least: u64,
    longer: u64,
}

impl Cut {
    fn new(size: u64, segments: u32) -> Cut {
        Cut { least: size / u64::from(segments), longer: size % u64::from(segments) }
    }

    #[inline]
    fn segment(self, segment: u32) -> u64 {
        self.least + u64::from(u64::from(segment) < self.longer)
    }
}

/// Part number `i` of `parts` near-equal parts of `total`: the first `total % parts` parts have one element more.
#[inline]
fn part(total: u64, parts: u64, i: u64) -> Range<u64> {
    let (small, larger) = (total / parts, total % parts);
    let at = |i: u64| i * small + i.min(larger);
    at(i)..at(i + 1)
}

impl Geometry {
    /// The geometry of a buffer without blocks.
    pub fn whole(schedule: &(impl Schedule + ?Sized), count: u64) -> Geometry {
        let (chunks, segments) = (schedule.chunks(), schedule.segments());
        let (small, larger) = (count / u64::from(chunks), count % u64::from(chunks));
        let sizes = [Cut::new(small + 1, segments), Cut::new(small, segments)];
        Geometry { count, chunks, segments, sizes, larger, places: None }
    }

    /// The geometry of a buffer with one block per rank, of `block` elements each.
    pub fn blocked(schedule: &(impl Schedule + ?Sized), block: u64) -> Geometry {
        let (ranks, chunks) = (schedule.ranks(), schedule.chunks());
        let owners: Vec<Rank> = (0..chunks).map(|c| schedule.owner(c)).collect();
        let mut shares = vec![0u64; ranks as usize];
        owners.iter().for_each(|owner| shares[owner.index()] += 1);
        let mut seen = vec![0u64; ranks as usize];
        let mut places = Places { starts: Vec::with_capacity(owners.len()), before: vec![0] };
        let mut before = 0;
        for owner in owners {
            let nth = &mut seen[owner.index()];
            let range = part(block, shares[owner.index()], *nth);
            *nth += 1;
            before += range.end - range.start;
            places.starts.push(u64::from(owner.0) * block + range.start);
            places.before.push(before);
        }
        let whole = Geometry::whole(schedule, u64::from(ranks) * block);
        let in_order = (0..chunks).all(|c| places.range(c) == whole.chunk(c));
        Geometry { places: (!in_order).then_some(places), ..whole }
    }

    /// The number of chunks.
    #[inline]
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Whether all chunks have the same size.
    pub fn is_equal(&self) -> bool {
        let size = |range: Range<u64>| range.end - range.start;
        match &self.places {
            None => self.larger == 0,
            Some(_) => (1..self.chunks).all(|c| size(self.chunk(c)) == size(self.chunk(0))),
        }
    }

    /// This geometry with the buffer enlarged until all chunks are equal, for schedules in which every rank has the same number of
    /// chunks.
    pub fn rounded_up(&self, schedule: &(impl Schedule + ?Sized)) -> Geometry {
        let chunks = u64::from(self.chunks);
        let whole = Geometry::whole(schedule, self.count.div_ceil(chunks) * chunks);
        match &self.places {
            None => whole,
            Some(_) => Geometry::blocked(schedule, whole.count.div_ceil(u64::from(schedule.ranks()))),
        }
    }

    /// The number of elements of the whole buffer.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The range of elements of one chunk.
    #[inline]
    pub fn chunk(&self, chunk: u32) -> Range<u64> {
        match &self.places {
            None => part(self.count, u64::from(self.chunks), u64::from(chunk)),
            Some(places) => places.range(chunk),
        }
    }

    /// The range of elements of one segment of one chunk.
    #[inline]
    pub fn piece(&self, chunk: u32, segment: u32) -> Range<u64> {
        let whole = self.chunk(chunk);
        let cut = part(whole.end - whole.start, u64::from(self.segments), u64::from(segment));
        whole.start + cut.start..whole.start + cut.end
    }

    /// The elements of a span, as one range per chunk in order of chunks. Adjacent ranges are not joined.
    #[inline]
    pub fn ranges(&self, span: Span) -> impl Iterator<Item = Range<u64>> + '_ {
        (span.first_chunk..span.first_chunk + span.chunks).map(move |chunk| self.piece(chunk, span.segment))
    }

    /// The number of elements of a span, in constant time, except for segments of chunks whose positions are stored (`places`).
    #[inline]
    pub fn elements(&self, span: Span) -> u64 {
        let (from, to) = (u64::from(span.first_chunk), u64::from(span.first_chunk + span.chunks));
        match &self.places {
            None => {
                let big = to.min(self.larger).saturating_sub(from);
                let [larger, small] = self.sizes.map(|size| size.segment(span.segment));
                big * larger + (to - from - big) * small
            }
            Some(places) if self.segments == 1 => places.before[to as usize] - places.before[from as usize],
            Some(_) => self.ranges(span).map(|range| range.end - range.start).sum(),
        }
    }
}

impl Places {
    #[inline]
    fn range(&self, chunk: u32) -> Range<u64> {
        let (chunk, start) = (chunk as usize, self.starts[chunk as usize]);
        start..start + self.before[chunk + 1] - self.before[chunk]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Step;
    use proptest::prelude::*;

    /// A schedule without steps whose chunks belong to the ranks in reverse order.
    struct Backwards {
        ranks: u32,
        chunks: u32,
        segments: u32,
    }

    impl Schedule for Backwards {
        fn ranks(&self) -> u32 {
            self.ranks
        }
        fn chunks(&self) -> u32 {
            self.chunks
        }
        fn rounds(&self) -> u64 {
            0
        }
        fn step(&self, _: Rank, _: u64) -> Step {
            Step::IDLE
        }
        fn segments(&self) -> u32 {
            self.segments
        }
        fn owner(&self, chunk: u32) -> Rank {
            Rank((self.chunks - 1 - chunk) * self.ranks / self.chunks)
        }
    }

    fn size(range: Range<u64>) -> u64 {
        range.end - range.start
    }

    proptest! {
        #[test]
        fn a_span_has_the_elements_of_its_pieces(
            ranks in 1u32..6, chunks in 1u32..12, segments in 1u32..4, count in 0u64..60, at in 0u32..12, len in 1u32..12,
        ) {
            let schedule = Backwards { ranks, chunks, segments };
            let at = at % chunks;
            let len = len.min(chunks - at);
            for geometry in [Geometry::whole(&schedule, count), Geometry::blocked(&schedule, count)] {
                let mut all = 0;
                for segment in 0..segments {
                    let span = Span { segment, ..Span::data(at, len) };
                    let slow: u64 = (at..at + len).map(|c| size(geometry.piece(c, segment))).sum();
                    prop_assert_eq!(geometry.elements(span), slow);
                    all += slow;
                }
                prop_assert_eq!(all, (at..at + len).map(|c| size(geometry.chunk(c))).sum::<u64>());
            }
        }

        #[test]
        fn rounding_up_adds_less_than_an_element_to_each_chunk(ranks in 1u32..6, share in 1u32..4, count in 0u64..60) {
            let schedule = Backwards { ranks, chunks: ranks * share, segments: 1 };
            for geometry in [Geometry::whole(&schedule, count), Geometry::blocked(&schedule, count)] {
                let rounded = geometry.rounded_up(&schedule);
                prop_assert!(rounded.is_equal());
                prop_assert!(rounded.count() >= geometry.count());
                prop_assert!(rounded.count() < geometry.count() + u64::from(ranks * share));
                prop_assert_eq!(rounded.count() == geometry.count(), geometry.is_equal());
            }
        }
    }
}
