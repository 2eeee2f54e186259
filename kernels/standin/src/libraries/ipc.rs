//! The stand-in driver's calls for memory and events of several processes.

use super::device::put;
use super::entry::entries;
use super::range::{self, PAGE};
use super::shared_file::SharedFile;
use super::work;
use super::world::{Allocation, CudaEvent, Recorded, here};
use cudarc::driver::sys::{CUipcEventHandle, CUipcMemHandle, CUresult as Code};
use std::ffi::{c_char, c_uint};
use std::os::unix::fs::FileExt;

/// Refuses what the options say that the GPUs do not share.
fn shares() -> Result<(), Code> {
    if here().options.ipc { Ok(()) } else { Err(Code::CUDA_ERROR_NOT_SUPPORTED) }
}

entries! {
    cuIpcGetMemHandle(place: *mut CUipcMemHandle, address: u64)
    "of memory of cuMemAlloc, by its first address; a part of a GPU (MIG) shares none" {
        shares()?;
        // No task runs while the memory becomes a file's.
        let _engine = work::engine();
        let mut here = here();
        here.current()?;
        let devices = here.options.devices;
        let Some(one) = here.memory.get_mut(&address).filter(|one| one.device < devices && !one.opened) else {
            here.violates(format!("cuIpcGetMemHandle: no memory of this process begins at {address:#x}"));
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        };
        let file = match &one.shared {
            Some(file) => file.clone(),
            None => {
                let file = SharedFile::new(one.bytes, one.device)?;
                // SAFETY: the bytes are allocated, and no task writes them meanwhile.
                let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, one.bytes as usize) };
                file.file.write_all_at(bytes, 0).map_err(|_| Code::CUDA_ERROR_OUT_OF_MEMORY)?;
                range::map(Some(address), one.bytes, &file.file, 0)?;
                one.shared.insert(file).clone()
            }
        };
        put(place, CUipcMemHandle { reserved: file.handle().map(|byte| byte as c_char) })
    }
    cuIpcOpenMemHandle_v2(place: *mut u64, handle: CUipcMemHandle, _flags: c_uint)
    "of another process of this host; for the current context, whose device must reach the memory's" {
        shares()?;
        let file = SharedFile::open(handle.reserved.map(|byte| byte as u8))?;
        let mut here = here();
        let device = here.device_of(here.current()?);
        if file.device != device && !here.options.peers {
            return Err(Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let (address, used) = here.parts[device];
        let bytes = file.bytes;
        range::map(Some(address), bytes, &file.file, 0)?;
        here.parts[device] = (address + bytes.next_multiple_of(PAGE), used);
        here.memory.insert(address, Allocation { device, bytes, shared: Some(file), opened: true });
        put(place, address)
    }
    cuIpcCloseMemHandle(address: u64) "of cuIpcOpenMemHandle, once; waits until the context is idle" {
        let mut here = here();
        let context = here.current()?;
        here = here.until("cuIpcCloseMemHandle", |world| world.idle(context))?;
        match here.memory.get(&address).filter(|one| one.opened).map(|one| one.bytes) {
            Some(bytes) => {
                here.memory.remove(&address);
                range::unmap_within(address, bytes);
                Ok(())
            }
            None => {
                here.violates(format!("cuIpcCloseMemHandle: nothing of another process is at {address:#x}"));
                Err(Code::CUDA_ERROR_INVALID_VALUE)
            }
        }
    }
    cuIpcGetEventHandle(place: *mut CUipcEventHandle, event: u64) "of an event that was made for it" {
        shares()?;
        let mut here = here();
        let file = here.event(event, "cuIpcGetEventHandle")?.shared.clone();
        let file = file.ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?;
        put(place, CUipcEventHandle { reserved: file.handle().map(|byte| byte as c_char) })
    }
    cuIpcOpenEventHandle(place: *mut u64, handle: CUipcEventHandle) "of another process of this host" {
        shares()?;
        let file = SharedFile::open(handle.reserved.map(|byte| byte as u8))?;
        let mut here = here();
        let (context, handle) = (here.current()?, here.handle());
        let event = CudaEvent { context, timed: false, last: Recorded::Never, shared: Some(file) };
        here.events.insert(handle, event);
        put(place, handle)
    }
}
