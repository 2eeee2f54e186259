//! Registered buffers: memory that all members have mapped. Other members read and write a registered buffer in place instead
//! of through slots.
//!
//! ```text
//! segment   | words, slots | member 0: [ buffer ][ buffer ]      | member 1: [ buffer ]     |
//!                            64 GiB of address space each; pages are allocated when first written
//! ```
//!
//! Each member registers buffers in its own part, without synchronisation. A freed buffer is zeroed and its memory is returned to the
//! system.

use super::registered_buffers::UNIT;
use super::sync_segment::SyncSegment;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// A buffer in memory that all members of a sync segment have mapped, zeros at first. The buffer belongs to this process; other
/// members access it only during an exchange that uses the buffer.
pub struct RegisteredBuffer {
    sync_segment: Arc<SyncSegment>,
    at: usize,
    bytes: usize,
}

impl SyncSegment {
    /// Registers a buffer of `bytes` bytes in the part of `member`, a member of this process. `None` for 0 bytes or too many.
    pub fn register(self: &Arc<SyncSegment>, member: u32, bytes: usize) -> Option<RegisteredBuffer> {
        let at = self.registered_buffers.take(member, bytes)?;
        Some(RegisteredBuffer { sync_segment: self.clone(), at, bytes })
    }

    /// The offsets of a member's bytes in the shared memory, if they are registered. Bytes that other members will `write` must not
    /// share a page with other data.
    pub(super) fn registered(&self, member: u32, bytes: *const [u8], write: bool) -> Option<Range<usize>> {
        let start = bytes.cast::<u8>().addr().wrapping_sub(self.memory.base().addr().get());
        let range = start..start.checked_add(bytes.len())?;
        let buffer = self.registered_buffers.around(member, &range)?;
        let whole =
            range.start.is_multiple_of(UNIT) && (range.end.is_multiple_of(UNIT) || range.end == buffer.end);
        (whole || !write).then_some(range)
    }

    /// Whether `range` is empty or lies in the part of `member`. Only the process of `member` has the table of the buffers in that part.
    pub(super) fn registrable(&self, member: u32, range: Range<usize>) -> bool {
        let part = self.registered_buffers.part(member);
        range.is_empty() || part.start <= range.start && range.end <= part.end
    }

    /// Ends the sharing of registered bytes that other members may still write to; the bytes are zeros afterwards.
    ///
    /// # Safety
    /// The range comes from [`SyncSegment::registered`] for writing, is still borrowed, and its content is no longer needed.
    pub(super) unsafe fn detach(&self, member: u32, range: Range<usize>) {
        let Some(buffer) = self.registered_buffers.around(member, &range) else { return };
        if let Some(held) = self.registered_buffers.held().get_mut(&buffer.start) {
            held.lost = true;
        }
        let pages = range.start..range.end.next_multiple_of(UNIT);
        // SAFETY: the range is whole pages that only this borrower uses, as the caller guarantees.
        unsafe {
            self.memory.part_from_others(pages);
        }
    }
}

impl Deref for RegisteredBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: inside the memory, which lives as long as the sync segment; other code accesses these bytes only in an exchange
        // that borrows them.
        unsafe {
            std::slice::from_raw_parts(self.sync_segment.memory.base().as_ptr().add(self.at), self.bytes)
        }
    }
}

impl DerefMut for RegisteredBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the memory, which lives as long as the sync segment; the buffer is borrowed for writing.
        unsafe {
            std::slice::from_raw_parts_mut(self.sync_segment.memory.base().as_ptr().add(self.at), self.bytes)
        }
    }
}

impl Drop for RegisteredBuffer {
    fn drop(&mut self) {
        let mut held = self.sync_segment.registered_buffers.held();
        let Some(buffer) = held.get_mut(&self.at).filter(|buffer| !buffer.lost) else { return };
        // The lock is held, so that the memory is zeroed before it can be reserved again.
        match self.sync_segment.memory.give_back(self.at..buffer.end(self.at)) {
            true => drop(held.remove(&self.at)),
            false => buffer.lost = true,
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests;
