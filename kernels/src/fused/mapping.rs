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
    let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: the range is this mapping.
    unsafe { leave_out_of_dumps(base, bytes) };
    Ok(base)
}

/// Leaves memory out of core dumps: the mapping of a world is larger than a machine's memory and disk.
///
/// # Safety
/// The range is whole pages inside a mapping.
unsafe fn leave_out_of_dumps(from: NonNull<u8>, bytes: usize) {
    // An error is ignored: the memory is usable without this.
    // SAFETY: as the caller guarantees; this advice does not change the memory's content.
    let _ = unsafe { madvise(from.as_ptr().cast(), bytes, Advice::LinuxDontDump) };
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
    let replaced = unsafe { mmap_anonymous(from.as_ptr().cast(), bytes, protection, flags).is_ok() };
    // SAFETY: the pages are still inside the mapping.
    unsafe { leave_out_of_dumps(from, bytes) };
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping that begins at this address, from the system's table.
    fn flags(base: NonNull<u8>) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", base.as_ptr().addr());
        let lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        lines.into_iter().find(|line| line.starts_with("VmFlags:")).unwrap().into()
    }

    #[test]
    fn core_dumps_hold_neither_shared_memory_nor_registered_buffers() {
        let bytes = 4 << 20;
        let base = map(&create("dumps", bytes).unwrap(), bytes).unwrap();
        assert!(flags(base).contains(" dd"), "{}", flags(base));
        // SAFETY: whole pages of the mapping, to which nothing refers.
        assert!(unsafe { replace(base, 1 << 20) });
        assert!(flags(base).contains(" dd"), "{}", flags(base));
        // SAFETY: the mapping, to which nothing refers.
        unsafe { unmap(base, bytes) };
    }
}
