//! Parts of flat buffers by ranges of elements, and marks that move along a queue.

use crate::Result;
use allfold_cuda::{Mark, Memory, Queue, Slice};
use std::ops::Range;

/// The elements `span` of a buffer whose elements have `size` bytes.
pub(super) fn part<'a>(of: Slice<'a>, span: &Range<usize>, size: usize) -> allfold_cuda::Result<Slice<'a>> {
    of.part(span.start * size, span.len() * size)
}

/// Memory that lives as long as the run, filled with zeros. No queued work uses the memory when this returns, so it may be freed if a
/// later allocation fails.
pub(super) fn zeroed(queue: &Queue, bytes: usize) -> Result<Memory> {
    let memory = Memory::new(queue.machine(), queue.device(), bytes)?;
    queue.fill(memory.all(), 0)?;
    queue.finish()?;
    Ok(memory)
}

/// Moves `mark` to the current end of `queue`.
pub(super) fn mark(mark: &mut Option<Mark>, queue: &Queue) -> Result<()> {
    match mark {
        Some(mark) => mark.move_to(queue)?,
        None => *mark = Some(queue.record()?),
    }
    Ok(())
}
