//! Zeroed memory for a sync segment: private to this process, or shared with other processes of the host.
//!
//! Shared memory is a sealed `memfd`: it has no name in any file system, cannot shrink under a mapping, and is freed when the last
//! process that holds it ends.

use super::mapping;
use std::alloc::Layout;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// A block of memory, freed or unmapped on drop.
pub(super) struct Memory {
    base: NonNull<u8>,
    kind: Kind,
}

enum Kind {
    Own(Layout),
    Mapped(usize),
}

// SAFETY: the value holds only addresses; the memory behind them is accessed by atomic words or by the protocol of `Member`.
unsafe impl Send for Memory {}
// SAFETY: the value holds only addresses; the memory behind them is accessed by atomic words or by the protocol of `Member`.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates memory of this process, aligned to a page.
    ///
    /// # Panics
    /// If `bytes` is more than memory can address.
    pub fn own(bytes: usize) -> Memory {
        let Ok(layout) = Layout::from_size_align(bytes, 4096) else {
            panic!("a segment of {bytes} bytes is more than memory can address");
        };
        assert!(layout.size() > 0, "a segment of no bytes");
        // SAFETY: the layout's size is not 0.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Memory { base, kind: Kind::Own(layout) }
    }

    /// Allocates shared memory of the host, with the file descriptor by which other processes map it.
    pub fn shared(name: &str, bytes: usize) -> std::io::Result<(Memory, OwnedFd)> {
        let fd = mapping::create(name, bytes)?;
        Ok((Memory::map(&fd, bytes)?, fd))
    }

    /// Maps another process's shared memory by its file descriptor; its size must be one of `sizes`.
    pub fn attach(fd: OwnedFd, sizes: [usize; 2]) -> std::io::Result<Memory> {
        let (found, sealed) = mapping::size(&fd)?;
        let bytes = sizes.into_iter().find(|bytes| *bytes as i64 == found);
        match bytes.filter(|_| sealed) {
            Some(bytes) => Memory::map(&fd, bytes),
            None => {
                let what = format!("want {} sealed bytes; the file has {found}, sealed: {sealed}", sizes[0]);
                Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what))
            }
        }
    }

    fn map(fd: &OwnedFd, bytes: usize) -> std::io::Result<Memory> {
        Ok(Memory { base: mapping::map(fd, bytes)?, kind: Kind::Mapped(bytes) })
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn bytes(&self) -> usize {
        match self.kind {
            Kind::Own(layout) => layout.size(),
            Kind::Mapped(bytes) => bytes,
        }
    }

    /// Requests large pages from the system from byte `from` on.
    pub fn prefer_large_pages(&self, from: usize) {
        if let (Kind::Mapped(bytes), true) = (&self.kind, from < self.bytes()) {
            // SAFETY: the range is inside the mapping.
            unsafe { mapping::prefer_large_pages(self.base.add(from), bytes - from) };
        }
    }

    /// Returns the pages of `range` to the system, so that they read as zeros; this process must be their last user. Returns false if the
    /// system refuses.
    pub fn give_back(&self, range: std::ops::Range<usize>) -> bool {
        debug_assert!(range.end <= self.bytes());
        // SAFETY: the range is inside the mapping, and no code refers to these bytes any more.
        unsafe { mapping::give_back(self.base.add(range.start), range.len()) }
    }

    /// Replaces shared pages by zeroed pages of this process alone. Other processes that have the shared pages mapped can no
    /// longer change what this process reads.
    ///
    /// # Safety
    /// The range is whole pages, and no code of this process relies on their content.
    pub unsafe fn part_from_others(&self, range: std::ops::Range<usize>) {
        debug_assert!(range.end <= self.bytes());
        // SAFETY: the range is inside this mapping; the caller guarantees that its old content is not needed.
        if !unsafe { mapping::replace(self.base.add(range.start), range.len()) } {
            // Continuing would leave a borrowed buffer that other processes may still write to.
            std::alloc::handle_alloc_error(Layout::new::<[u8; 4096]>());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.kind {
            // SAFETY: the memory was allocated with this layout, and no borrow of it is left.
            Kind::Own(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) },
            // SAFETY: the memory was mapped with this size, and no borrow of it is left.
            Kind::Mapped(bytes) => unsafe { mapping::unmap(self.base, bytes) },
        }
    }
}
