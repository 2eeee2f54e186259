//! The stand-in driver's calls for device memory, pinned host memory and copies.

use super::device::put;
use super::entry::entries;
use super::range;
use super::task::Task;
use super::world::{Allocation, World, here};
use cudarc::driver::sys::CUresult as Code;
use std::ffi::{c_uint, c_void};

/// The byte that fresh memory holds: such bytes form a NaN in every float type.
const FRESH: u8 = 0xff;

/// Allocates memory of a device; the index after the last device means pinned host memory.
fn allocate(here: &mut World, device: usize, bytes: usize) -> Result<u64, Code> {
    let limit = if device == here.options.devices { u64::MAX } else { here.options.memory };
    let (next, used) = *here.parts.get(device).ok_or(Code::CUDA_ERROR_INVALID_DEVICE)?;
    if bytes == 0 {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    let bytes = bytes as u64;
    // The second bound keeps addresses inside the device's part: a wrong length must not reach the next device's addresses.
    if bytes > limit - used || bytes > range::part(device + 1) - next {
        return Err(Code::CUDA_ERROR_OUT_OF_MEMORY);
    }
    range::open(next, bytes, true, false);
    // SAFETY: the pages were just opened, and no other code has their addresses.
    unsafe { std::ptr::write_bytes(next as *mut u8, FRESH, bytes as usize) };
    here.memory.insert(next, Allocation { device, bytes, shared: None, opened: false });
    here.parts[device] = (next + bytes.next_multiple_of(range::PAGE), used + bytes);
    Ok(next)
}

fn free(here: &mut World, address: u64, pinned: bool, call: &str) -> Result<(), Code> {
    let host = here.options.devices;
    let owned = |one: &&Allocation| (one.device == host) == pinned && !one.opened;
    match here.memory.get(&address).filter(owned).map(|one| (one.device, one.bytes, one.shared.clone())) {
        Some((device, bytes, shared)) => {
            here.memory.remove(&address);
            here.parts[device].1 -= bytes;
            if shared.as_ref().is_some_and(|file| file.is_open()) {
                here.violates(format!("{call}: another process has the memory at {address:#x} open"));
            }
            match shared {
                Some(_) => range::unmap_within(address, bytes),
                None => range::open(address, bytes, false, true),
            }
            Ok(())
        }
        _ => {
            here.violates(format!("{call}: nothing is allocated at {address:#x}"));
            Err(Code::CUDA_ERROR_INVALID_VALUE)
        }
    }
}

/// Queues a copy on a stream. Device memory and pinned memory must be allocated; other host memory may be anywhere.
fn copy(into: u64, from: u64, bytes: usize, stream: u64, call: &str) -> Result<(), Code> {
    let (mut here, bytes) = (here(), bytes as u64);
    here.own(stream, call)?;
    if bytes == 0 {
        return Ok(());
    }
    if [into, from].iter().any(|at| here.is_ours(*at) && here.holds(*at, bytes).is_none()) {
        here.violates(format!("{call}: {bytes} bytes at {into:#x} or {from:#x} are not allocated"));
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    here.give(stream, call, Task::Copy { into, from, bytes })
}

entries! {
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) "of the current context's device" {
        let here = here();
        let device = here.device_of(here.current()?);
        put(free, (here.options.memory - here.parts[device].1) as usize)?;
        put(total, here.options.memory as usize)
    }
    cuMemAlloc_v2(place: *mut u64, bytes: usize) "of the current context; 0 bytes are refused; no address is given twice" {
        let mut here = here();
        let device = here.device_of(here.current()?);
        let address = allocate(&mut here, device, bytes)?;
        put(place, address)
    }
    cuMemFree_v2(address: u64)
    "waits until the memory's device is idle; a second time is a violation; later use is detected" {
        let mut here = here();
        here.current()?;
        let device = here.memory.get(&address).map(|one| one.device);
        let context = here.contexts.iter().find(|(_, context)| Some(context.device) == device).map(|found| *found.0);
        if let Some(context) = context {
            here = here.until("cuMemFree", |world| world.idle(context))?;
        }
        free(&mut here, address, false, "cuMemFree")
    }
    cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, _flags: c_uint) "0 bytes are refused" {
        let mut here = here();
        here.current()?;
        let host = here.options.devices;
        let address = allocate(&mut here, host, bytes)?;
        put(place, address as *mut c_void)
    }
    cuMemFreeHost(address: *mut c_void) "of cuMemHostAlloc, once; a copy that still reads it is a violation" {
        let mut here = here();
        here.current()?;
        free(&mut here, address as u64, true, "cuMemFreeHost")
    }
    cuMemcpyHtoDAsync_v2(into: u64, from: *const c_void, bytes: usize, stream: u64)
    "reads the source when the stream runs the copy, pageable memory too; a capture reads it at every replay" {
        copy(into, from as u64, bytes, stream, "cuMemcpyHtoDAsync")
    }
    cuMemcpyDtoHAsync_v2(into: *mut c_void, from: u64, bytes: usize, stream: u64)
    "writes the target when the stream runs the copy" {
        copy(into as u64, from, bytes, stream, "cuMemcpyDtoHAsync")
    }
    cuMemcpyAsync(into: u64, from: u64, bytes: usize, stream: u64)
    "between any two devices, by the host where they are no peers; a stream of the current context" {
        copy(into, from, bytes, stream, "cuMemcpyAsync")
    }
    cuMemsetD8Async(into: u64, value: u8, bytes: usize, stream: u64) "a stream of the current context" {
        let mut here = here();
        here.own(stream, "cuMemsetD8Async")?;
        let bytes = bytes as u64;
        if here.holds(into, bytes).is_none() {
            here.violates(format!("cuMemsetD8Async: {bytes} bytes at {into:#x} are not allocated"));
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        here.give(stream, "cuMemsetD8Async", Task::Fill { into, bytes, value })
    }
}
