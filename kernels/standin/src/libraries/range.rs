//! Device memory: one reserved range of addresses, a part for each device and one for pinned memory of the host.
//!
//! Addresses are never given out twice, and what is not allocated cannot be touched: a use after free is noticed, by a kernel
//! too.

use allfold_kernels::cuda::{Error, Result};
use libloading::os::unix::Library;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect};
use std::ffi::c_void;
use std::sync::OnceLock;

/// Addresses of each part.
const PART: u64 = 1 << 38;
/// The grain of protection.
pub(super) const PAGE: u64 = 4096;

/// The functions of standin.cc that watch the range.
struct Guard {
    watch: unsafe extern "C" fn(),
    faults: unsafe extern "C" fn(*mut *const usize) -> usize,
}

static GUARD: OnceLock<Guard> = OnceLock::new();
/// Where the range begins, and its bytes.
static RANGE: OnceLock<(u64, usize)> = OnceLock::new();

fn failed(why: &dyn std::fmt::Display) -> Error {
    Error::Refused { call: "reserve the stand-in's device memory", answer: why.to_string() }
}

/// Reserves the range, for so many devices and the host.
pub(super) fn reserve(devices: usize) -> Result<()> {
    let bytes = PART as usize * (devices + 1);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new range of addresses that nobody uses.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
    let start = start.map_err(|error| failed(&error))?;
    RANGE.set((start as u64, bytes)).map_err(|_| failed(&"it is there already"))
}

/// Takes the functions that watch the range from the library that has them, and begins.
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

/// Where the part of a device begins; the host's comes after the last device's.
pub(super) fn part(device: usize) -> u64 {
    RANGE.get().map_or(0, |range| range.0) + PART * device as u64
}

/// Opens or closes memory that begins at a page. Closed memory loses its content if it is `gone`.
pub(super) fn open(address: u64, bytes: u64, open: bool, gone: bool) {
    let (at, bytes) = (address as *mut c_void, bytes.max(1).next_multiple_of(PAGE) as usize);
    let rights = if open { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::empty() };
    // SAFETY: pages of the reserved range, which hold the bytes of one allocation.
    unsafe {
        if gone {
            let _ = madvise(at, bytes, Advice::LinuxDontNeed);
        }
        let _ = mprotect(at, bytes, rights);
    }
}

/// Runs a kernel, and gives where it touched what was closed, with how often.
pub(super) fn watched<T>(kernel: impl FnOnce() -> T) -> (T, Vec<u64>, usize) {
    let Some(guard) = GUARD.get() else { return (kernel(), Vec::new(), 0) };
    // SAFETY: takes nothing.
    unsafe { (guard.watch)() };
    let answer = kernel();
    let mut first = std::ptr::null();
    // SAFETY: a place for one pointer, to an array of 64.
    let (addresses, count) = unsafe {
        let count = (guard.faults)(&mut first);
        (std::slice::from_raw_parts(first, count.min(64)), count)
    };
    (answer, addresses.iter().map(|address| *address as u64).collect(), count)
}
