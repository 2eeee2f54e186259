//! The memory of a rank's buffers during an operation.

use std::ops::Range;

/// The caller's buffers as the schedule sees them: one buffer of the whole size, some parts of which may be in other memory.
pub(crate) enum Buffers<'a> {
    /// One buffer of the whole size.
    Whole(&'a mut [u8]),
    /// The rank's own block is in `block` and is copied to its range `own` of `whole` while it is sent. The schedule writes nothing to
    /// this range before.
    Block { whole: &'a mut [u8], own: Range<usize>, block: &'a [u8] },
    /// The rank's values are in `input`, which is only read. The schedule writes to `scratch`; parts that it never writes stay
    /// undefined. `result` holds the rank's own block in place of its range of `scratch`.
    Scattered { input: &'a [u8], scratch: &'a mut [u8], own: Range<usize>, result: &'a mut [u8] },
    /// No memory: messages have lengths and no contents.
    Lengths,
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
            Buffers::Lengths => Buffers::Lengths,
        }
    }

    /// The rank's result: its block `own` if the collective leaves each rank one block, else the whole buffer.
    pub fn result(self, own: Option<Range<usize>>) -> &'a mut [u8] {
        match (self, own) {
            (Buffers::Scattered { result, .. }, _) => result,
            (Buffers::Lengths, _) => &mut [],
            (Buffers::Whole(whole) | Buffers::Block { whole, .. }, Some(own)) => &mut whole[own],
            (Buffers::Whole(whole) | Buffers::Block { whole, .. }, None) => whole,
        }
    }
}
