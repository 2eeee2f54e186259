//! A rank's bytes during an operation: the buffer itself, and its shadows where something was written to them.

use crate::schedule::{Combine, Place, Span};
use crate::transport::{Payload, Transport};
use crate::{DType, Geometry, ReduceOp};
use allfold_kernels::reduce_bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Data and shadows. Errors say what a schedule asked for that cannot be.
pub(super) struct Store<'a> {
    data: &'a mut [u8],
    geometry: &'a Geometry,
    dtype: DType,
    op: ReduceOp,
    /// By (shadow, chunk, segment). What arrives for a shadow stays where it arrived.
    shadows: BTreeMap<(u32, u32, u32), Piece>,
}

/// Part of a payload that may hold several chunks.
struct Piece {
    bytes: Rc<Payload>,
    range: Range<usize>,
}

type Outcome = Result<(), String>;

impl<'a> Store<'a> {
    pub fn new(data: &'a mut [u8], geometry: &'a Geometry, dtype: DType, op: ReduceOp) -> Store<'a> {
        Store { data, geometry, dtype, op, shadows: BTreeMap::new() }
    }

    /// Bytes of a span.
    pub fn bytes(&self, span: Span) -> usize {
        self.geometry.elements(span) as usize * self.dtype.size()
    }

    /// Copies a span to `into`, which has its length.
    pub fn read(&self, span: Span, into: &mut [u8]) -> Outcome {
        let mut rest = into;
        for chunk in span.at..span.at + span.len {
            let from = self.piece(span, chunk)?;
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(from.len());
            part.copy_from_slice(from);
            rest = tail;
        }
        Ok(())
    }

    /// Puts a span's bytes in place: copied over what is there, or reduced into it.
    pub fn write(&mut self, span: Span, how: Combine, payload: Payload) -> Outcome {
        let Place::Scratch(shadow) = span.place else {
            let mut at = 0;
            for chunk in span.at..span.at + span.len {
                let place = self.place(chunk, span.segment);
                let from = &payload[at..at + place.len()];
                at += place.len();
                combine(self.dtype, self.op, how, &mut self.data[place], from);
            }
            return Ok(());
        };
        let bytes = Rc::new(payload);
        let mut at = 0;
        for chunk in span.at..span.at + span.len {
            let range = at..at + self.place(chunk, span.segment).len();
            at = range.end;
            self.keep(shadow, chunk, span.segment, how, Piece { bytes: bytes.clone(), range })?;
        }
        Ok(())
    }

    /// A step of the rank with itself: `from` is copied to, or reduced into, `into`.
    pub fn move_within(&mut self, from: Span, into: Span, how: Combine, room: &dyn Transport) -> Outcome {
        if self.bytes(from) != self.bytes(into) {
            return Err(format!("{from:?} and {into:?} differ in size"));
        }
        // Straight from a shadow into the data, chunk by chunk, where the chunks correspond.
        let sizes = |span: Span| (span.at..span.at + span.len).map(move |chunk| (chunk, span.segment));
        let same =
            |(a, b): ((u32, u32), (u32, u32))| self.place(a.0, a.1).len() == self.place(b.0, b.1).len();
        if let (Place::Scratch(shadow), Place::Data) = (from.place, into.place)
            && from.len == into.len
            && sizes(from).zip(sizes(into)).all(same)
        {
            for (source, target) in sizes(from).zip(sizes(into)) {
                let piece = self
                    .shadows
                    .get(&(shadow, source.0, source.1))
                    .ok_or_else(|| unwritten(from, source.0))?;
                let place = self.place(target.0, target.1);
                combine(self.dtype, self.op, how, &mut self.data[place], &piece.bytes[piece.range.clone()]);
            }
            return Ok(());
        }
        let mut payload = room.room(self.bytes(from));
        self.read(from, &mut payload)?;
        self.write(into, how, payload)
    }

    fn keep(&mut self, shadow: u32, chunk: u32, segment: u32, how: Combine, piece: Piece) -> Outcome {
        let key = (shadow, chunk, segment);
        if how == Combine::Copy {
            self.shadows.insert(key, piece);
            return Ok(());
        }
        let there = self.shadows.remove(&key).ok_or_else(|| {
            format!("reduces into chunk {chunk} of shadow {shadow}, where nothing was written")
        })?;
        // Reduction commutes to the bit, so whichever of the two buffers is ours alone takes the result.
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
        self.shadows.insert(key, into);
        Ok(())
    }

    fn piece(&self, span: Span, chunk: u32) -> Result<&[u8], String> {
        match span.place {
            Place::Data => Ok(&self.data[self.place(chunk, span.segment)]),
            Place::Scratch(shadow) => match self.shadows.get(&(shadow, chunk, span.segment)) {
                Some(piece) => Ok(&piece.bytes[piece.range.clone()]),
                None if self.place(chunk, span.segment).is_empty() => Ok(&[]),
                None => Err(unwritten(span, chunk)),
            },
        }
    }

    /// Where a piece of a chunk lies in the data, in bytes.
    fn place(&self, chunk: u32, segment: u32) -> Range<usize> {
        let range = self.geometry.piece(chunk, segment);
        let size = self.dtype.size();
        range.start as usize * size..range.end as usize * size
    }
}

fn unwritten(span: Span, chunk: u32) -> String {
    format!("reads chunk {chunk} of {:?}, where nothing was written", span.place)
}

fn combine(dtype: DType, op: ReduceOp, how: Combine, into: &mut [u8], from: &[u8]) {
    match how {
        Combine::Copy => into.copy_from_slice(from),
        Combine::Reduce => reduce_bytes(dtype, op, into, from),
    }
}
