//! The table of registered buffers of a sync segment; each member has its own part of the memory behind the slots.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The address space of one member's registered buffers in bytes, unless there are very many members.
pub(super) const RESERVE: usize = 64 << 30;

/// The size of a large page in bytes. A registered buffer of at least this size begins on a large page.
pub(super) const LARGE: usize = 2 << 20;

/// Registered buffers are multiples of this many bytes; every system's page size divides this number.
pub(super) const UNIT: usize = 64 << 10;

/// The number of members whose first buffers get different distances from their parts' starts. Without this, Zen's first-level
/// cache, which indexes lines by a few address bits, would hold only one of the buffers that are used in turn.
const COLORS: usize = 16;

/// The registered buffers in each member's part. A process usually has one member.
pub(super) struct RegisteredBuffers {
    /// The offset of the first member's part in the memory.
    from: usize,
    /// The size of each part in bytes; 0 if nothing can be registered.
    each: usize,
    held: Mutex<BTreeMap<usize, Held>>,
}

/// The entry of a registered buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The size in bytes that the caller requested.
    bytes: usize,
    /// Whether other members may still write to the buffer, so that its memory must not be used again.
    pub lost: bool,
}

impl Held {
    pub fn end(self, start: usize) -> usize {
        start + self.bytes.next_multiple_of(UNIT)
    }
}

impl RegisteredBuffers {
    pub fn none() -> RegisteredBuffers {
        RegisteredBuffers { from: 0, each: 0, held: Mutex::default() }
    }

    pub fn behind(from: usize, each: usize) -> RegisteredBuffers {
        RegisteredBuffers { from, each, held: Mutex::default() }
    }

    pub fn part(&self, member: u32) -> Range<usize> {
        let start = self.from + member as usize * self.each;
        start..start + self.each
    }

    pub fn held(&self) -> MutexGuard<'_, BTreeMap<usize, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves the first free place for a buffer of `bytes` bytes in the part of `member`; returns its offset, if there is one.
    pub fn take(&self, member: u32, bytes: usize) -> Option<usize> {
        let part = self.part(member);
        let unit = if bytes < LARGE { UNIT } else { LARGE };
        let mut held = self.held();
        let mut start = part.start + member as usize % COLORS * LARGE;
        for (&other, buffer) in held.range(part.clone()) {
            if other >= start.checked_add(bytes)? {
                break;
            }
            start = start.max(buffer.end(other).next_multiple_of(unit));
        }
        let new = Held { bytes, lost: false };
        (bytes > 0 && part.contains(&start) && new.end(start) <= part.end)
            .then(|| held.insert(start, new))?;
        Some(start)
    }

    /// The range of the registered buffer of `member` that contains `bytes`; both are ranges of offsets in the shared memory.
    pub fn around(&self, member: u32, bytes: &Range<usize>) -> Option<Range<usize>> {
        if self.each == 0 || !self.part(member).contains(&bytes.start) {
            return None;
        }
        let held = self.held();
        let (&start, buffer) = held.range(..=bytes.start).next_back()?;
        (!buffer.lost && bytes.end <= start + buffer.bytes).then_some(start..start + buffer.bytes)
    }
}
