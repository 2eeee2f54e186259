//! The NCCL stand-in's memory, registered buffers and windows.

use super::super::api::{Answer, RawComm, SUCCESS, Window};
use super::traffic::{Event, Link};
use super::world::{Region, current, on};
use super::{INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, UNHANDLED_CUDA};
use allfold_base::lock;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// NCCL's allocations in this process: the device, and the number of registrations.
static ALLOCATED: Mutex<BTreeMap<usize, (Region, u32)>> = Mutex::new(BTreeMap::new());
/// The registrations: the address of each.
static REGISTERED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

pub(super) unsafe extern "C" fn mem_alloc(out: *mut *mut c_void, bytes: usize) -> Answer {
    let Some(place) = current() else { return INVALID_USAGE };
    let Ok(address) = place.machine.acquire(place.device, bytes) else { return UNHANDLED_CUDA };
    lock(&ALLOCATED).insert(address as usize, (place, 0));
    // SAFETY: the caller promises a place for an address.
    unsafe { *out = address as *mut c_void };
    SUCCESS
}

/// Memory that is still registered is an invalid usage, so that a test finds it.
pub(super) unsafe extern "C" fn mem_free(memory: *mut c_void) -> Answer {
    let mut all = lock(&ALLOCATED);
    match all.remove(&(memory as usize)) {
        None => INVALID_ARGUMENT,
        Some((place, 0)) => {
            // SAFETY: the memory was acquired from this device in `mem_alloc`.
            unsafe { place.machine.release(place.device, memory as u64) };
            SUCCESS
        }
        Some(registered) => {
            all.insert(memory as usize, registered);
            INVALID_USAGE
        }
    }
}

pub(super) unsafe extern "C" fn register(
    comm: RawComm,
    memory: *mut c_void,
    _: usize,
    out: *mut *mut c_void,
) -> Answer {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    on(comm, |_| {
        let mut all = lock(&ALLOCATED);
        let Some((_, registrations)) = all.get_mut(&(memory as usize)) else { return INVALID_ARGUMENT };
        *registrations += 1;
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&REGISTERED).insert(handle, memory as usize);
        // SAFETY: the caller promises a place for a handle.
        unsafe { *out = handle as *mut c_void };
        SUCCESS
    })
}

/// Registers a buffer as a window, when all ranks have called.
pub(super) unsafe extern "C" fn window_register(
    comm: RawComm,
    memory: *mut c_void,
    bytes: usize,
    out: *mut Window,
    _: c_int,
) -> Answer {
    let together = on(comm, |comm| {
        let link = Link::Registered { nth: comm.registered.fetch_add(1, Ordering::Relaxed) };
        comm.group.tell(comm.rank, Event::Calls(link));
        let size = comm.group.size;
        let all = comm.await_all(|state| match state.links.get(&link) {
            Some(there) if there.len() == size => Some(SUCCESS),
            _ => (!state.gone.is_empty()).then_some(REMOTE_ERROR),
        });
        all.unwrap_or_else(|answer| answer)
    });
    match together {
        // SAFETY: as the caller promises.
        SUCCESS => unsafe { register(comm, memory, bytes, out) },
        answer => answer,
    }
}

pub(super) unsafe extern "C" fn deregister(comm: RawComm, handle: *mut c_void) -> Answer {
    on(comm, |_| {
        let Some(address) = lock(&REGISTERED).remove(&(handle as usize)) else { return INVALID_ARGUMENT };
        if let Some((_, registrations)) = lock(&ALLOCATED).get_mut(&address) {
            *registrations -= 1;
        }
        SUCCESS
    })
}
