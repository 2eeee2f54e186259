//! Zeroed memory for a sync segment: this process's own, or shared with other processes of the host.
//!
//! Shared memory is a sealed `memfd`: it has no name in any file system, cannot shrink under a mapping, and is gone with
//! the last process that has it.

use std::alloc::Layout;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// Memory that lives as long as this value.
pub(super) struct Memory {
    base: NonNull<u8>,
    kind: Kind,
}

enum Kind {
    Own(Layout),
    #[cfg(target_os = "linux")]
    Mapped(usize),
}

// SAFETY: nothing but addresses; what is there is reached by atomic words, or under the protocol of `Member`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory of this process, aligned to a page.
    ///
    /// # Panics
    /// If it is more than memory can address.
    pub fn own(bytes: usize) -> Memory {
        let Ok(layout) = Layout::from_size_align(bytes, 4096) else {
            panic!("a segment of {bytes} bytes is more than memory can address");
        };
        assert!(layout.size() > 0, "a segment of no bytes");
        // SAFETY: the layout has a size.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Memory { base, kind: Kind::Own(layout) }
    }

    /// Memory of the host, with the descriptor by which other processes map it.
    #[cfg(target_os = "linux")]
    pub fn shared(name: &str, bytes: usize) -> std::io::Result<(Memory, OwnedFd)> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Memory::map(&fd, bytes)?, fd))
    }

    /// Behind a descriptor of another process's shared memory, which has one of these sizes.
    #[cfg(target_os = "linux")]
    pub fn attach(fd: OwnedFd, sizes: [usize; 2]) -> std::io::Result<Memory> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
        let found = fstat(&fd)?.st_size;
        let bytes = sizes.into_iter().find(|bytes| *bytes as i64 == found);
        // Sealed, so that no later look at it can fault.
        let sealed = fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK | SealFlags::SEAL);
        match bytes.filter(|_| sealed) {
            Some(bytes) => Memory::map(&fd, bytes),
            None => {
                let what = format!("the descriptor is no sync segment of {} bytes: it has {found}", sizes[0]);
                Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what))
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn map(fd: &OwnedFd, bytes: usize) -> std::io::Result<Memory> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping at a place of the system's choice, which nothing else can refer to.
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

    /// Asks for large pages from this byte on: fewer of them have to be found for large buffers.
    #[cfg(target_os = "linux")]
    pub fn prefer_large_pages(&self, from: usize) {
        use rustix::mm::{Advice, madvise};
        let (Kind::Mapped(bytes), true) = (&self.kind, from < self.bytes()) else { return };
        // SAFETY: inside the mapping; this advice changes nothing of what is there.
        let _ = unsafe { madvise(self.base.as_ptr().add(from).cast(), bytes - from, Advice::LinuxHugepage) };
    }

    /// Gives pages back to the system, of which this process has the last use; they are zeros afterwards. False where
    /// it could not be done.
    #[cfg(target_os = "linux")]
    pub fn give_back(&self, range: std::ops::Range<usize>) -> bool {
        use rustix::mm::{Advice, madvise};
        debug_assert!(range.end <= self.bytes());
        // SAFETY: inside the mapping, and nobody refers to those bytes any more.
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
        // SAFETY: inside this mapping, which it replaces there; the caller's promise for what was there.
        let parted = unsafe {
            mmap_anonymous(self.base.as_ptr().add(range.start).cast(), range.len(), protection, flags)
        };
        if parted.is_err() {
            // Going on would leave a buffer that others may write to while it is borrowed.
            std::alloc::handle_alloc_error(Layout::new::<[u8; 4096]>());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.kind {
            // SAFETY: allocated with this layout; nobody borrows it any more.
            Kind::Own(layout) => unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            Kind::Mapped(bytes) => {
                // SAFETY: mapped with this size; nobody borrows it any more.
                let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
            }
        }
    }
}
