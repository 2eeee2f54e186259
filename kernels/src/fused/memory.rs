//! Zeroed memory for a board: this process's own, or shared with other processes of the host.
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

// SAFETY: nothing but addresses; what is there is reached by atomic words, or under the protocol of `Party`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Of this process, aligned to a page.
    ///
    /// # Panics
    /// If it is more than memory can address.
    pub fn own(bytes: usize) -> Memory {
        let Ok(layout) = Layout::from_size_align(bytes, 4096) else {
            panic!("a board of {bytes} bytes is more than memory can address");
        };
        assert!(layout.size() > 0, "a board of no bytes");
        // SAFETY: the layout has a size.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Memory { base, kind: Kind::Own(layout) }
    }

    /// Of the host, and the descriptor by which other processes can map it.
    #[cfg(target_os = "linux")]
    pub fn shared(name: &str, bytes: usize) -> std::io::Result<(Memory, OwnedFd)> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Memory::map(&fd, bytes)?, fd))
    }

    /// Behind a descriptor of another process's shared memory, of just this size.
    #[cfg(target_os = "linux")]
    pub fn attach(fd: OwnedFd, bytes: usize) -> std::io::Result<Memory> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
        let found = fstat(&fd)?.st_size;
        // Sealed, so that no later look at it can fault.
        if found != bytes as i64 || !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK | SealFlags::SEAL) {
            let what = format!("the descriptor is no board of {bytes} bytes: it has {found}");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
        }
        Memory::map(&fd, bytes)
    }

    #[cfg(target_os = "linux")]
    fn map(fd: &OwnedFd, bytes: usize) -> std::io::Result<Memory> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping at a place of the system's choice, which nothing else can refer to.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0)?
        };
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Memory { base, kind: Kind::Mapped(bytes) }),
            None => Err(std::io::ErrorKind::OutOfMemory.into()),
        }
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
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
