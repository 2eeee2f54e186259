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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::registered_buffers::{LARGE, RESERVE};
    use super::super::sync_segment::Pace;
    use super::*;

    fn sync_segment() -> Arc<SyncSegment> {
        Arc::new(SyncSegment::shared("registered", 2, 256, Pace { looks: 1, yields: 1 }).unwrap().0)
    }

    #[test]
    fn registered_buffers_do_not_overlap_and_return_as_zeros() {
        let sync_segment = sync_segment();
        let sizes = [1, UNIT, UNIT + 1, LARGE, 3 * LARGE + 5, 100];
        let mut registered_buffers: Vec<RegisteredBuffer> =
            sizes.iter().map(|bytes| sync_segment.register(1, *bytes).unwrap()).collect();
        for (mark, buffer) in (1u8..).zip(&mut registered_buffers) {
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(mark);
        }
        for (mark, buffer) in (1u8..).zip(&registered_buffers) {
            assert!(buffer.iter().all(|byte| *byte == mark));
        }
        let at = registered_buffers[2].at;
        drop(registered_buffers.remove(2));
        let again = sync_segment.register(1, UNIT + 1).unwrap();
        assert_eq!(again.at, at, "the place is used again");
        assert!(again.iter().all(|byte| *byte == 0));
        assert!(sync_segment.register(0, RESERVE + 1).is_none() && sync_segment.register(0, 0).is_none());
        assert!(Arc::new(SyncSegment::new(2, 256, Pace { looks: 1, yields: 1 })).register(0, 8).is_none());
    }

    #[test]
    fn bytes_that_others_may_write_share_no_page() {
        let sync_segment = sync_segment();
        let buffer = sync_segment.register(0, 3 * UNIT + 9).unwrap();
        let part = |range: Range<usize>, write| {
            sync_segment.registered(0, &raw const buffer[range], write).is_some()
        };
        assert!(part(0..3 * UNIT + 9, true) && part(UNIT..2 * UNIT, true) && part(UNIT..3 * UNIT + 9, true));
        assert!(!part(8..UNIT, true) && !part(0..UNIT + 8, true));
        assert!(part(8..UNIT, false));
        assert!(
            sync_segment.registered(1, &raw const buffer[..], false).is_none(),
            "of another member's part"
        );
        let other = [0u8; 9];
        assert!(sync_segment.registered(0, &raw const other[..], false).is_none(), "nobody registered that");
    }

    #[test]
    fn a_detached_buffer_is_its_owners_alone_and_is_not_registered_again() {
        let pace = Pace { looks: 1, yields: 1 };
        let (mine, fd) = SyncSegment::shared("withdrawn", 2, 256, pace).unwrap();
        let (mine, theirs) = (Arc::new(mine), SyncSegment::attach(fd, 2, 256, pace).unwrap());
        let mut buffer = mine.register(0, 2 * UNIT).unwrap();
        buffer.fill(1);
        let other = theirs.memory.base().as_ptr().wrapping_add(buffer.at);
        // SAFETY: `other` points to the same bytes, mapped a second time, and no exchange runs.
        assert_eq!(unsafe { other.read() }, 1);
        // SAFETY: the range is the whole buffer, and its old content is not read afterwards.
        unsafe { mine.detach(0, buffer.at..buffer.at + buffer.len()) };
        // SAFETY: `other` points to the shared bytes, which the buffer no longer uses.
        unsafe { other.write(7) };
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer.fill(3);
        assert!(mine.registered(0, &raw const buffer[..], true).is_none());
        let at = buffer.at;
        drop(buffer);
        assert_ne!(mine.register(0, 2 * UNIT).unwrap().at, at);
    }
}
