//! Memory that processes share, by Linux's system calls. Elsewhere: `mapping_elsewhere.rs`.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// A descriptor of zeroed memory that cannot change its size.
pub(super) fn create(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// The size in bytes of the memory behind a descriptor, and whether it is sealed, so that no access to it can fault.
pub(super) fn size(fd: &OwnedFd) -> io::Result<(i64, bool)> {
    Ok((fstat(fd)?.st_size, fcntl_get_seals(fd)?.contains(SealFlags::SHRINK | SealFlags::SEAL)))
}

pub(super) fn map(fd: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at a place that the system chooses, so no code refers to it yet.
    let base = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED | MapFlags::NORESERVE, fd, 0)?
    };
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// # Safety
/// The range is a mapping of [`map`], and nothing refers to it.
pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller guarantees.
    let _ = unsafe { munmap(base.as_ptr().cast(), bytes) };
}

/// Requests large pages from the system, so that large buffers need fewer pages.
///
/// # Safety
/// The range is inside a mapping.
pub(super) unsafe fn prefer_large_pages(from: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller guarantees; this advice does not change the memory's content.
    let _ = unsafe { madvise(from.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
}

/// Returns pages to the system, so that they read as zeros. Returns false if the system refuses.
///
/// # Safety
/// The range is inside a mapping, and no code refers to it any more.
pub(super) unsafe fn give_back(from: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: as the caller guarantees.
    unsafe { madvise(from.as_ptr().cast(), bytes, Advice::LinuxRemove).is_ok() }
}

/// Replaces shared pages by zeroed pages of this process alone. Returns false if the system refuses.
///
/// # Safety
/// The range is whole pages inside a mapping, and no code of this process relies on their content.
pub(super) unsafe fn replace(from: NonNull<u8>, bytes: usize) -> bool {
    let (protection, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE);
    // SAFETY: as the caller guarantees.
    unsafe { mmap_anonymous(from.as_ptr().cast(), bytes, protection, flags).is_ok() }
}
