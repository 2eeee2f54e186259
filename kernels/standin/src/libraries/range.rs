//! Device memory: one reserved range of addresses, with a part for each device and one for pinned host memory.
//!
//! An address is never allocated twice, and memory that is not allocated cannot be accessed, so that a use after free is detected,
//! in kernels too.

use allfold_cuda::{Error, Result};
use cudarc::driver::sys::CUresult as Code;
use libloading::os::unix::Library;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use std::ffi::c_void;
use std::fs::File;
use std::sync::OnceLock;

/// The address space of each part in bytes.
const PART: u64 = 1 << 38;
/// The size of a page in bytes, the unit of memory protection.
pub(super) const PAGE: u64 = 4096;

/// The functions of standin.cc that watch accesses to the range.
struct Guard {
    watch: unsafe extern "C" fn(),
    faults: unsafe extern "C" fn(*mut *const usize) -> usize,
}

static GUARD: OnceLock<Guard> = OnceLock::new();
/// The range's first address and its size in bytes.
static RANGE: OnceLock<(u64, usize)> = OnceLock::new();

fn failed(why: &dyn std::fmt::Display) -> Error {
    Error::Refused { call: "reserve the stand-in's device memory", answer: why.to_string() }
}

/// Reserves the range, for `devices` devices and the host.
pub(super) fn reserve(devices: usize) -> Result<()> {
    let bytes = PART as usize * (devices + 1);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new range of addresses that no code uses yet.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
    let start = start.map_err(|error| failed(&error))?;
    RANGE.set((start as u64, bytes)).map_err(|_| failed(&"it is reserved already"))
}

/// Takes the functions that watch the range from `library`, and starts watching.
pub(super) fn adopt(library: &'static Library) -> Result<()> {
    if GUARD.get().is_some() {
        return Ok(());
    }
    // SAFETY: the functions have these types in standin.cc.
    unsafe {
        let begin = library.get::<unsafe extern "C" fn(usize, usize)>(b"standin_guard");
        let (watch, faults) = (library.get(b"standin_watch"), library.get(b"standin_faults"));
        let guard = Guard {
            watch: *watch.map_err(|error| failed(&error))?,
            faults: *faults.map_err(|error| failed(&error))?,
        };
        let (start, bytes) = RANGE.get().copied().unwrap_or_default();
        begin.map_err(|error| failed(&error))?(start as usize, bytes);
        let _ = GUARD.set(guard);
    }
    Ok(())
}

/// The first address of a device's part; the host's part comes after the last device's.
pub(super) fn part(device: usize) -> u64 {
    RANGE.get().map_or(0, |range| range.0) + PART * device as u64
}

/// Opens or closes the pages of an allocation for access; `gone` first discards their content.
pub(super) fn open(address: u64, bytes: u64, open: bool, gone: bool) {
    let (at, bytes) = (address as *mut c_void, bytes.max(1).next_multiple_of(PAGE) as usize);
    let rights = if open { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::empty() };
    // SAFETY: pages of the reserved range that hold one allocation.
    unsafe {
        if gone {
            let _ = madvise(at, bytes, Advice::LinuxDontNeed);
        }
        let _ = mprotect(at, bytes, rights);
    }
}

/// Maps a part of a file, over pages of the range or anywhere, and returns its address.
pub(super) fn map(at: Option<u64>, bytes: u64, file: &File, from: u64) -> std::result::Result<u64, Code> {
    let flags = if at.is_some() { MapFlags::SHARED | MapFlags::FIXED } else { MapFlags::SHARED };
    let (place, bytes) = (at.unwrap_or_default() as *mut c_void, bytes.next_multiple_of(PAGE) as usize);
    // SAFETY: pages of the range that hold one allocation, or new ones.
    let mapped = unsafe { mmap(place, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, file, from) };
    mapped.map(|address| address as u64).map_err(|_| Code::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Ends a mapping that lies anywhere.
pub(super) fn unmap(address: u64, bytes: u64) {
    // SAFETY: the pages are those of one mapping, which no code uses any more.
    let _ = unsafe { munmap(address as *mut c_void, bytes as usize) };
}

/// Ends a mapping over pages of the range, which then cannot be accessed.
pub(super) fn unmap_within(address: u64, bytes: u64) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let (at, bytes) = (address as *mut c_void, bytes.next_multiple_of(PAGE) as usize);
    // SAFETY: pages of the range that hold one allocation, which no code uses any more.
    let _ = unsafe { mmap_anonymous(at, bytes, ProtFlags::empty(), flags) };
}

/// Runs a kernel; returns its result, the addresses of first accesses to closed pages (at most 64), and the number of such pages.
pub(super) fn watched<T>(kernel: impl FnOnce() -> T) -> (T, Vec<u64>, usize) {
    let Some(guard) = GUARD.get() else { return (kernel(), Vec::new(), 0) };
    // SAFETY: the function takes no arguments.
    unsafe { (guard.watch)() };
    let answer = kernel();
    let mut first = std::ptr::null();
    // SAFETY: the function writes one pointer, to an array of 64 addresses.
    let (addresses, count) = unsafe {
        let count = (guard.faults)(&mut first);
        (std::slice::from_raw_parts(first, count.min(64)), count)
    };
    (answer, addresses.iter().map(|address| *address as u64).collect(), count)
}
