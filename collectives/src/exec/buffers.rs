//! Where a rank's bytes are during an operation.

use std::ops::Range;

/// The caller's buffers as the schedule sees them: one buffer of the whole size, of which parts may lie elsewhere.
pub(crate) enum Buffers<'a> {
    /// One buffer.
    Whole(&'a mut [u8]),
    /// The rank's own block lies elsewhere and is copied to its place `own` as it is sent; until then only the rank writes
    /// there.
    Block { whole: &'a mut [u8], own: Range<usize>, block: &'a [u8] },
    /// The rank's values lie in `input` and are only read; what the schedule never writes stays unwritten in `scratch`.
    /// `result` stands for the rank's own block: nothing is read or written where the block would lie in `scratch`.
    Scattered { input: &'a [u8], scratch: &'a mut [u8], own: Range<usize>, result: &'a mut [u8] },
}

impl<'a> Buffers<'a> {
    /// Borrows these buffers again.
    pub fn lend(&mut self) -> Buffers<'_> {
        match self {
            Buffers::Whole(whole) => Buffers::Whole(whole),
            Buffers::Block { whole, own, block } => Buffers::Block { whole, own: own.clone(), block },
            Buffers::Scattered { input, scratch, own, result } => {
                Buffers::Scattered { input, scratch, own: own.clone(), result }
            }
        }
    }

    /// The rank's result: its block `own` if the collective leaves each rank one block, else the whole buffer.
    pub fn result(self, own: Option<Range<usize>>) -> &'a mut [u8] {
        match (self, own) {
            (Buffers::Scattered { result, .. }, _) => result,
            (Buffers::Whole(whole) | Buffers::Block { whole, .. }, Some(own)) => &mut whole[own],
            (Buffers::Whole(whole) | Buffers::Block { whole, .. }, None) => whole,
        }
    }
}
