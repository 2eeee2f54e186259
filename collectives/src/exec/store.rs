//! A rank's bytes during an operation: the buffer itself and the written parts of its scratch copies.

use super::buffers::Buffers;
use crate::schedule::{Combine, Region, Span};
use crate::transport::{Memory, Payload};
use crate::{DType, Geometry, ReduceOp};
use allfold_kernels::{copy_part, reduce_bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Data and scratch copies. Errors name the access of the schedule that is impossible.
pub(super) struct Store<'a> {
    data: Data<'a>,
    /// The rank's own block, until [`Store::settle`] has copied its last part to the buffer.
    given: Option<Given<'a>>,
    /// The rank's input. A chunk is read from the input until the chunk is first written in the data, so that data that are only
    /// sent are not copied.
    input: Option<Input<'a>>,
    geometry: &'a Geometry,
    dtype: DType,
    op: ReduceOp,
    /// Whether messages have contents, and not only lengths.
    has_contents: bool,
    /// The written parts of scratch copies, by (scratch copy, chunk, segment). Data that arrive for a scratch copy stay in the
    /// payload.
    scratch_copies: BTreeMap<(u32, u32, u32), Piece>,
}

/// An input that is only read, with the pieces whose values in the data have replaced those in the input.
struct Input<'a> {
    bytes: &'a [u8],
    /// The offset, in bytes, of each piece that has been written in the data.
    written: BTreeSet<usize>,
    /// The offset, in bytes, of each piece whose reduction has begun: its first parts are in the data, the others still in the input.
    begun: BTreeSet<usize>,
}

/// The whole buffer, of which one range may lie in other memory.
struct Data<'a> {
    bytes: &'a mut [u8],
    /// A range of the buffer, and the memory that replaces it.
    instead: Option<(Range<usize>, &'a mut [u8])>,
}

impl Data<'_> {
    /// The bytes of a range, if they are contiguous.
    fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        match &self.instead {
            Some((of, bytes)) if overlap(of, &range) => {
                bytes.get(range.start.checked_sub(of.start)?..range.end - of.start)
            }
            _ => self.bytes.get(range),
        }
    }

    fn get_mut(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        match &mut self.instead {
            Some((of, bytes)) if overlap(of, &range) => {
                bytes.get_mut(range.start.checked_sub(of.start)?..range.end - of.start)
            }
            _ => self.bytes.get_mut(range),
        }
    }

    /// The bytes of a piece of a chunk. They are always contiguous, because a block consists of whole chunks.
    fn piece(&self, range: Range<usize>) -> &[u8] {
        self.get(range).unwrap_or_default()
    }

    fn piece_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.get_mut(range).unwrap_or_default()
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// A block that must be copied to its range of the data. Each part is copied when it is sent, while it is in the cache.
struct Given<'a> {
    bytes: &'a [u8],
    at: Range<usize>,
    copied: usize,
}

/// Part of a payload that may hold several chunks.
struct Piece {
    bytes: Rc<Payload>,
    range: Range<usize>,
}

type Outcome = Result<(), String>;

impl<'a> Store<'a> {
    pub fn new(buffers: Buffers<'a>, geometry: &'a Geometry, dtype: DType, op: ReduceOp) -> Store<'a> {
        let (mut given, mut input, mut instead) = (None, None, None);
        let has_contents = !matches!(buffers, Buffers::Lengths);
        let bytes = match buffers {
            Buffers::Lengths => &mut [],
            Buffers::Whole(whole) => whole,
            Buffers::Block { whole, own, block } => {
                given = Some(Given { bytes: block, at: own, copied: 0 });
                whole
            }
            Buffers::Scattered { input: bytes, scratch, own, result } => {
                input = Some(Input { bytes, written: BTreeSet::new(), begun: BTreeSet::new() });
                instead = Some((own, result));
                scratch
            }
        };
        let data = Data { bytes, instead };
        Store { data, given, input, geometry, dtype, op, has_contents, scratch_copies: BTreeMap::new() }
    }

    /// Copies the part of the rank's own block that has not been copied yet.
    pub fn settle(&mut self) {
        if let Some(Given { bytes, at, copied }) = self.given.take() {
            let place = self.data.piece_mut(at.start + copied..at.end);
            copy_part(place, &bytes[copied..], bytes.len());
        }
    }

    /// Whether a piece of the data has been written; if not, its value is still in the input.
    fn is_written(&self, piece: &Range<usize>) -> bool {
        self.input.as_ref().is_none_or(|input| piece.is_empty() || input.written.contains(&piece.start))
    }

    /// Prepares a piece of the data for writing. Before a reduction, the piece's value is copied from the input.
    fn touch(&mut self, piece: &Range<usize>, how: Combine) {
        if self.is_written(piece) {
            return;
        }
        if let Some(input) = &mut self.input {
            input.written.insert(piece.start);
            if how == Combine::Reduce {
                self.data.piece_mut(piece.clone()).copy_from_slice(&input.bytes[piece.clone()]);
            }
        }
    }

    /// The number of bytes of a span.
    pub fn bytes(&self, span: Span) -> usize {
        self.geometry.elements(span) as usize * self.dtype.size()
    }

    /// The payload of a message that sends a span. `allocate` returns a payload of this many bytes.
    pub fn payload(&self, span: Span, allocate: impl FnOnce(usize) -> Payload) -> Result<Payload, String> {
        if !self.has_contents {
            return Ok(Payload::of_length(self.bytes(span)));
        }
        let mut payload = allocate(self.bytes(span));
        self.read(span, &mut payload).map(|()| payload)
    }

    /// The number of bytes of a message that arrived. The message has contents if the store has contents.
    pub fn arrived(&self, payload: &Payload) -> usize {
        if self.has_contents { payload.len() } else { payload.length() }
    }

    /// Copies a span to `into`, which has the span's length.
    fn read(&self, span: Span, into: &mut [u8]) -> Outcome {
        let mut rest = into;
        for chunk in span.first_chunk..span.first_chunk + span.chunks {
            let from = self.piece(span, chunk)?;
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(from.len());
            part.copy_from_slice(from);
            rest = tail;
        }
        Ok(())
    }

    /// Stores a span's bytes in its region, data or scratch: overwrites the bytes there, or reduces into them.
    pub fn write(&mut self, span: Span, how: Combine, payload: Payload) -> Outcome {
        if !self.has_contents {
            return Ok(());
        }
        let Region::Scratch(number) = span.region else {
            let mut at = 0;
            for chunk in span.first_chunk..span.first_chunk + span.chunks {
                let place = self.place(chunk, span.segment);
                let from = &payload[at..at + place.len()];
                at += place.len();
                self.touch(&place, how);
                combine(self.dtype, self.op, how, self.data.piece_mut(place), from);
            }
            return Ok(());
        };
        let bytes = Rc::new(payload);
        let mut at = 0;
        for chunk in span.first_chunk..span.first_chunk + span.chunks {
            let range = at..at + self.place(chunk, span.segment).len();
            at = range.end;
            self.keep(number, chunk, span.segment, how, Piece { bytes: bytes.clone(), range })?;
        }
        Ok(())
    }

    /// A step of the rank with itself: copies or reduces `from` into `into`.
    /// `allocate` returns a payload of this many bytes.
    pub fn move_within(
        &mut self,
        from: Span,
        into: Span,
        how: Combine,
        allocate: impl FnOnce(usize) -> Payload,
    ) -> Outcome {
        self.settle();
        if self.bytes(from) != self.bytes(into) {
            return Err(format!("{from:?} and {into:?} differ in size"));
        }
        // If both spans have chunks of the same lengths, each chunk is written from the scratch copy directly into the data.
        let sizes = |span: Span| {
            (span.first_chunk..span.first_chunk + span.chunks).map(move |chunk| (chunk, span.segment))
        };
        let same =
            |(a, b): ((u32, u32), (u32, u32))| self.place(a.0, a.1).len() == self.place(b.0, b.1).len();
        if let (Region::Scratch(number), Region::Data) = (from.region, into.region)
            && self.has_contents
            && from.chunks == into.chunks
            && sizes(from).zip(sizes(into)).all(same)
        {
            for (source, target) in sizes(from).zip(sizes(into)) {
                self.touch(&self.place(target.0, target.1), how);
                let piece = self
                    .scratch_copies
                    .get(&(number, source.0, source.1))
                    .ok_or_else(|| unwritten(from, source.0))?;
                let place = self.place(target.0, target.1);
                let bytes = &piece.bytes[piece.range.clone()];
                combine(self.dtype, self.op, how, self.data.piece_mut(place), bytes);
            }
            return Ok(());
        }
        let payload = self.payload(from, allocate)?;
        self.write(into, how, payload)
    }

    /// The bytes of this range in the caller's block. `None` if the range is not in the rank's own block, or after
    /// [`Store::settle`].
    fn given(&self, range: &Range<usize>) -> Option<&'a [u8]> {
        let given = self.given.as_ref()?;
        let bytes = given.bytes;
        bytes.get(range.start.checked_sub(given.at.start)?..range.end.checked_sub(given.at.start)?)
    }

    /// Copies the rank's own bytes of this range to the buffer while they are sent, if they follow the bytes copied last.
    fn follow(&mut self, range: &Range<usize>) {
        let Some(given) = self.given.as_mut().filter(|given| overlap(&given.at, range)) else { return };
        if range.start < given.at.start || range.end > given.at.end {
            return self.settle();
        }
        let part = range.start - given.at.start..range.end - given.at.start;
        if part.start == given.copied {
            given.copied = part.end;
            copy_part(self.data.piece_mut(range.clone()), &given.bytes[part], given.bytes.len());
        }
    }

    /// Whether a span can be sent in place.
    pub fn is_there(&self, span: Span) -> bool {
        match span.region {
            Region::Data => true,
            Region::Scratch(_) => span.chunks == 1 && self.piece(span, span.first_chunk).is_ok(),
        }
    }

    /// For each chunk that overlaps the bytes `part` of a span: its offset in the span, and its range in the buffer, in bytes.
    fn pieces(
        &self,
        span: Span,
        part: Range<usize>,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a> {
        let (geometry, size, mut before) = (self.geometry, self.dtype.size(), 0);
        let places = (span.first_chunk..span.first_chunk + span.chunks).map(move |chunk| {
            let range = geometry.piece(chunk, span.segment);
            let place = range.start as usize * size..range.end as usize * size;
            before += place.len();
            (before - place.len(), place)
        });
        places.filter(move |(before, place)| *before < part.end && before + place.len() > part.start)
    }

    /// The range of the buffer that holds the bytes `part` of a span, if they are contiguous.
    fn joined(&self, span: Span, part: &Range<usize>) -> Option<Range<usize>> {
        let mut pieces = self.pieces(span, part.clone());
        let Some((before, first)) = pieces.next() else { return part.is_empty().then_some(0..0) };
        let start = first.start + (part.start - before);
        let whole = pieces.try_fold(first, |so_far, (_, next)| {
            (so_far.end == next.start).then_some(so_far.start..next.end)
        })?;
        (start + part.len() <= whole.end).then_some(start..start + part.len())
    }

    fn keep(&mut self, number: u32, chunk: u32, segment: u32, how: Combine, piece: Piece) -> Outcome {
        let key = (number, chunk, segment);
        if how == Combine::Copy {
            self.scratch_copies.insert(key, piece);
            return Ok(());
        }
        let there = self.scratch_copies.remove(&key).ok_or_else(|| {
            format!("reduces into chunk {chunk} of scratch copy {number}, where nothing was written")
        })?;
        // A reduction gives the same bits in either order of its operands, so the result is written to whichever of the two payloads no
        // other piece uses, or to a new payload.
        let (mut into, from) =
            if Rc::strong_count(&there.bytes) == 1 { (there, piece) } else { (piece, there) };
        match Rc::get_mut(&mut into.bytes) {
            Some(bytes) => {
                combine(
                    self.dtype,
                    self.op,
                    how,
                    &mut bytes[into.range.clone()],
                    &from.bytes[from.range.clone()],
                );
            }
            None => {
                let mut fresh = into.bytes.another(into.range.len());
                fresh.copy_from_slice(&into.bytes[into.range.clone()]);
                combine(self.dtype, self.op, how, &mut fresh, &from.bytes[from.range.clone()]);
                into = Piece { range: 0..fresh.len(), bytes: Rc::new(fresh) };
            }
        }
        self.scratch_copies.insert(key, into);
        Ok(())
    }

    fn piece(&self, span: Span, chunk: u32) -> Result<&[u8], String> {
        match span.region {
            Region::Data => {
                let place = self.place(chunk, span.segment);
                match &self.input {
                    Some(input) if !self.is_written(&place) => Ok(&input.bytes[place]),
                    _ => Ok(self.data.piece(place)),
                }
            }
            Region::Scratch(number) => match self.scratch_copies.get(&(number, chunk, span.segment)) {
                Some(piece) => Ok(&piece.bytes[piece.range.clone()]),
                None if self.place(chunk, span.segment).is_empty() => Ok(&[]),
                None => Err(unwritten(span, chunk)),
            },
        }
    }

    /// The range of a piece of a chunk in the data, in bytes.
    fn place(&self, chunk: u32, segment: u32) -> Range<usize> {
        let range = self.geometry.piece(chunk, segment);
        let size = self.dtype.size();
        range.start as usize * size..range.end as usize * size
    }
}

impl Memory for Store<'_> {
    fn source(&mut self, span: Span, part: Range<usize>) -> Option<&[u8]> {
        if let Region::Scratch(_) = span.region {
            return (span.chunks == 1).then(|| self.piece(span, span.first_chunk).ok()?.get(part))?;
        }
        let range = self.joined(span, &part)?;
        self.follow(&range);
        if let Some(bytes) = self.given(&range) {
            return Some(bytes);
        }
        let Some(input) = &self.input else { return self.data.get(range) };
        let mut pieces = self.pieces(span, part).map(|(_, piece)| self.is_written(&piece));
        let written = pieces.next().unwrap_or(true);
        pieces
            .all(|other| other == written)
            .then(|| if written { self.data.get(range) } else { input.bytes.get(range) })?
    }

    fn copy_out(&mut self, span: Span, from: usize, into: &mut [u8]) -> bool {
        let part = from..from + into.len();
        let mut there = 0;
        for (before, piece) in self.pieces(span, part.clone()).filter(|_| span.region == Region::Data) {
            let bytes = match &self.input {
                Some(input) if !self.is_written(&piece) => &input.bytes[piece],
                _ => self.given(&piece).unwrap_or_else(|| self.data.piece(piece)),
            };
            let cut = part.start.max(before)..part.end.min(before + bytes.len());
            into[cut.start - from..cut.end - from]
                .copy_from_slice(&bytes[cut.start - before..cut.end - before]);
            there += cut.len();
        }
        there == into.len()
    }

    fn target(&mut self, span: Span, part: Range<usize>) -> Option<&mut [u8]> {
        let range = self.joined(span, &part).filter(|_| span.region == Region::Data)?;
        for (_, piece) in self.pieces(span, part) {
            self.touch(&piece, Combine::Copy);
        }
        self.data.get_mut(range)
    }

    fn put(&mut self, span: Span, from: usize, how: Combine, bytes: &[u8]) {
        let part = from..from + bytes.len();
        for (before, piece) in self.pieces(span, part.clone()).filter(|_| span.region == Region::Data) {
            let cut = part.start.max(before)..part.end.min(before + piece.len());
            let place = piece.start + cut.start - before..piece.start + cut.end - before;
            // The reduction copies the chunk's own value part by part, while each part is in the cache.
            if how == Combine::Reduce
                && let Some(input) = &mut self.input
            {
                if place.start == piece.start && input.written.insert(piece.start) {
                    input.begun.insert(piece.start);
                }
                if input.begun.contains(&piece.start) {
                    self.data.piece_mut(place.clone()).copy_from_slice(&input.bytes[place.clone()]);
                }
                if place.end == piece.end {
                    input.begun.remove(&piece.start);
                }
            } else {
                self.touch(&piece, how);
            }
            combine(
                self.dtype,
                self.op,
                how,
                self.data.piece_mut(place),
                &bytes[cut.start - from..cut.end - from],
            );
        }
    }
}

fn unwritten(span: Span, chunk: u32) -> String {
    format!("reads chunk {chunk} of {:?}, where nothing was written", span.region)
}

fn combine(dtype: DType, op: ReduceOp, how: Combine, into: &mut [u8], from: &[u8]) {
    match how {
        Combine::Copy => into.copy_from_slice(from),
        Combine::Reduce => reduce_bytes(dtype, op, into, from),
    }
}
