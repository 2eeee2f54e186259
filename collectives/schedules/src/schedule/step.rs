//! The step of a rank in one round: what it sends, what it receives, and which steps must wait for each other.

use allfold_base::Rank;
use std::fmt;

/// The buffer of a rank in which a span lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// The buffer of the collective, cut into [`Schedule::chunks`](super::Schedule::chunks) near-equal chunks.
    Data,
    /// The scratch copy of the data with this number: its chunk `c` has the size of the data's chunk `c`, and takes memory only
    /// once it is written.
    Scratch(u32),
}

/// Consecutive chunks of one region, or one segment of each of these chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The region that contains the chunks.
    pub region: Region,
    /// The first chunk.
    pub first_chunk: u32,
    /// The number of chunks; 1 or more.
    pub chunks: u32,
    /// The segment of every chunk, below [`Schedule::segments`](super::Schedule::segments); 0 for whole chunks.
    pub segment: u32,
}

impl Span {
    /// Whole chunks `first_chunk .. first_chunk + chunks` of the data.
    #[inline]
    pub const fn data(first_chunk: u32, chunks: u32) -> Span {
        Span { region: Region::Data, first_chunk, chunks, segment: 0 }
    }

    /// Whole chunks `first_chunk .. first_chunk + chunks` of a scratch copy.
    #[inline]
    pub const fn scratch(number: u32, first_chunk: u32, chunks: u32) -> Span {
        Span { region: Region::Scratch(number), first_chunk, chunks, segment: 0 }
    }

    /// This span after every chunk of its region is cut into `by` chunks, with chunk numbers starting at `from`.
    #[inline]
    pub const fn refined(self, by: u32, from: u32) -> Span {
        Span { first_chunk: from + self.first_chunk * by, chunks: self.chunks * by, ..self }
    }

    /// Whether two spans have elements in common.
    #[inline]
    pub fn overlaps(&self, other: &Span) -> bool {
        self.region == other.region
            && self.segment == other.segment
            && self.first_chunk < other.first_chunk + other.chunks
            && other.first_chunk < self.first_chunk + self.chunks
    }
}

/// The span in words: `chunks 4 to 5 of the data`, `chunk 2 of scratch copy 0, segment 1`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { region, first_chunk: first, chunks, segment } = *self;
        match chunks {
            0 => write!(f, "no chunk at chunk {first}")?,
            1 => write!(f, "chunk {first}")?,
            _ => write!(f, "chunks {first} to {}", u64::from(first) + u64::from(chunks) - 1)?,
        }
        match region {
            Region::Data => f.write_str(" of the data")?,
            Region::Scratch(copy) => write!(f, " of scratch copy {copy}")?,
        }
        if segment > 0 { write!(f, ", segment {segment}") } else { Ok(()) }
    }
}

/// What a receiver does with arriving data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Arriving data replace the data in the span.
    Copy,
    /// Arriving data are reduced into the data in the span: incoming (+) local.
    Reduce,
}

/// What one rank does in one round. A round is a match tag for the checkers; it is neither a barrier nor a wire tag. A step that sends to
/// and receives from the rank itself is a local move or reduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The rank that the step sends to, and the span that it sends, with the values from before the step.
    pub send: Option<(Rank, Span)>,
    /// The rank that the step receives from, the span that receives the data, and how the data are combined.
    pub recv: Option<(Rank, Span, Combine)>,
}

impl Step {
    /// A step in which the rank does nothing.
    pub const IDLE: Step = Step { send: None, recv: None };

    /// A local step: a move or a reduction within one rank.
    #[inline]
    pub const fn local(rank: Rank, from: Span, into: Span, how: Combine) -> Step {
        Step { send: Some((rank, from)), recv: Some((rank, into, how)) }
    }

    /// The step with every rank in it mapped by `rank`, and both its spans by `span`.
    #[inline]
    pub fn map(self, rank: impl Fn(Rank) -> Rank, span: impl Fn(Span) -> Span) -> Step {
        Step {
            send: self.send.map(|(to, what)| (rank(to), span(what))),
            recv: self.recv.map(|(from, what, how)| (rank(from), span(what), how)),
        }
    }

    /// The spans that the step reads and writes.
    #[inline]
    pub fn access(&self) -> Access<Span> {
        Access { reads: self.send.map(|(_, span)| span), writes: self.recv.map(|(_, span, _)| span) }
    }

    /// Whether two steps of a rank conflict, so that the later one must wait for the earlier one. See [`Access::conflicts`].
    #[inline]
    pub fn conflicts(&self, other: &Step) -> bool {
        self.access().conflicts(&other.access(), |one, other| one.overlaps(&other))
    }

    /// Whether the step neither sends nor receives.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.send.is_none() && self.recv.is_none()
    }
}

/// The spans that a step reads and writes; `S` is an interpreter's representation of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access<S> {
    /// The span that the send reads.
    pub reads: Option<S>,
    /// The span that the receive writes.
    pub writes: Option<S>,
}

impl<S: Copy> Access<S> {
    /// Whether one of two steps writes what the other reads or writes, so that the later one must wait for the earlier one. Two
    /// reads do not conflict. Every interpreter of the execution rule uses this function.
    #[inline]
    pub fn conflicts(&self, other: &Access<S>, overlaps: impl Fn(S, S) -> bool) -> bool {
        let meet = |one: Option<S>, other: Option<S>| one.zip(other).is_some_and(|(a, b)| overlaps(a, b));
        meet(self.writes, other.reads) || meet(self.writes, other.writes) || meet(self.reads, other.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_conflict_if_one_writes_data_of_the_other() {
        let (here, there) = (Span::data(2, 3), Span::data(4, 1));
        let (send, recv) = (
            |span| Step { send: Some((Rank(1), span)), recv: None },
            |span| Step { send: None, recv: Some((Rank(1), span, Combine::Copy)) },
        );
        for (one, other, wait) in [
            (send(here), send(there), false),
            (send(here), recv(there), true),
            (recv(here), send(there), true),
            (recv(here), recv(there), true),
            (recv(here), send(Span::data(5, 1)), false),
            (recv(here), send(Span::scratch(0, 4, 1)), false),
            (recv(here), send(Span { segment: 1, ..there }), false),
            (recv(here), Step::IDLE, false),
        ] {
            assert_eq!(one.conflicts(&other), wait, "{one:?} {other:?}");
            assert_eq!(other.conflicts(&one), wait, "{other:?} {one:?}");
        }
    }
}
