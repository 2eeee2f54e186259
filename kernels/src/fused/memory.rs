//! Zeroed memory for a sync segment: private to this process, or shared with other processes of the host.
//!
//! Shared memory is a sealed `memfd`: it has no name in any file system, cannot shrink under a mapping, and is freed when the last
//! process that holds it ends.

use std::alloc::Layout;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// A block of memory, freed or unmapped on drop.
pub(super) struct Memory {
    base: NonNull<u8>,
    kind: Kind,
}

enum Kind {
    Own(Layout),
    #[cfg(target_os = "linux")]
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
    #[cfg(target_os = "linux")]
    pub fn shared(name: &str, bytes: usize) -> std::io::Result<(Memory, OwnedFd)> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Memory::map(&fd, bytes)?, fd))
    }

    /// Maps another process's shared memory by its file descriptor; its size must be one of `sizes`.
    #[cfg(target_os = "linux")]
    pub fn attach(fd: OwnedFd, sizes: [usize; 2]) -> std::io::Result<Memory> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
        let found = fstat(&fd)?.st_size;
        let bytes = sizes.into_iter().find(|bytes| *bytes as i64 == found);
        // The seals ensure that no later access to the memory can fault.
        let sealed = fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK | SealFlags::SEAL);
        match bytes.filter(|_| sealed) {
            Some(bytes) => Memory::map(&fd, bytes),
            None => {
                let what = format!("want {} sealed bytes; the file has {found}, sealed: {sealed}", sizes[0]);
                Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what))
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn map(fd: &OwnedFd, bytes: usize) -> std::io::Result<Memory> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping at a place that the system chooses, so no code refers to it yet.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED | MapFlags::NORESERVE, fd, 0)?
        };
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Memory { base, kind: Kind::Mapped(bytes) }),
            None => Err(std::io::ErrorKind::OutOfMemory.into()),
        }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn bytes(&self) -> usize {
        match self.kind {
            Kind::Own(layout) => layout.size(),
            #[cfg(target_os = "linux")]
            Kind::Mapped(bytes) => bytes,
        }
    }

    /// Asks the system for large pages from byte `from` on, so that large buffers need fewer pages.
    #[cfg(target_os = "linux")]
    pub fn prefer_large_pages(&self, from: usize) {
        use rustix::mm::{Advice, madvise};
        let (Kind::Mapped(bytes), true) = (&self.kind, from < self.bytes()) else { return };
        // SAFETY: the range is inside the mapping, and this advice does not change the memory's content.
        let _ = unsafe { madvise(self.base.as_ptr().add(from).cast(), bytes - from, Advice::LinuxHugepage) };
    }

    /// Gives the pages of `range` back to the system, so that they read as zeros; this process must be their last user. Returns
    /// false if the system refuses.
    #[cfg(target_os = "linux")]
    pub fn give_back(&self, range: std::ops::Range<usize>) -> bool {
        use rustix::mm::{Advice, madvise};
        debug_assert!(range.end <= self.bytes());
        // SAFETY: the range is inside the mapping, and no code refers to these bytes any more.
        unsafe {
            madvise(self.base.as_ptr().add(range.start).cast(), range.len(), Advice::LinuxRemove).is_ok()
        }
    }

    /// Replaces shared pages by zeroed pages of this process alone. Other processes that have the shared pages mapped can no
    /// longer change what this process reads.
    ///
    /// # Safety
    /// The range is whole pages, and no code of this process relies on their content.
    #[cfg(target_os = "linux")]
    pub unsafe fn part_from_others(&self, range: std::ops::Range<usize>) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        debug_assert!(range.end <= self.bytes());
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE);
        // SAFETY: the range is inside this mapping and is replaced there; the caller guarantees that its old content is not needed.
        let parted = unsafe {
            mmap_anonymous(self.base.as_ptr().add(range.start).cast(), range.len(), protection, flags)
        };
        if parted.is_err() {
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
            #[cfg(target_os = "linux")]
            Kind::Mapped(bytes) => {
                // SAFETY: the memory was mapped with this size, and no borrow of it is left.
                let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
            }
        }
    }
}
