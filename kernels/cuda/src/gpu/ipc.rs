//! Memory and events of several processes of a host, by the driver's handles (CUDA IPC).

use super::{Gpu, Handle};
use crate::error::driver;
use crate::{CudaEvent, IpcHandle, Result};
use cudarc::driver::{result, sys};
use std::ffi::{c_char, c_uint};

/// The flags of an event that other processes may open: it has no time.
const SHARED: c_uint = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint
    | sys::CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
/// The flag to enable access to the memory's device, where it is another GPU.
const REACHES: c_uint = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;

impl Gpu {
    pub(super) fn memory_handle(&self, device: usize, address: u64) -> Result<IpcHandle> {
        self.enter(device)?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the call writes one handle.
        let answer = unsafe { sys::cuIpcGetMemHandle(&mut handle, address) };
        driver("share memory with other processes", answer.result())?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    pub(super) fn memory_of(&self, device: usize, handle: &IpcHandle) -> Result<u64> {
        self.enter(device)?;
        let (mut address, reserved) = (0, handle.map(|byte| byte as c_char));
        // SAFETY: the call writes one address.
        let answer =
            unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, sys::CUipcMemHandle { reserved }, REACHES) };
        driver("open another process's memory", answer.result()).map(|()| address)
    }

    pub(super) fn event_handle(&self, device: usize) -> Result<(CudaEvent, IpcHandle)> {
        self.enter(device)?;
        let (mut event, mut handle) = (std::ptr::null_mut(), sys::CUipcEventHandle { reserved: [0; 64] });
        // SAFETY: the call writes one event.
        driver("make an event", unsafe { sys::cuEventCreate(&mut event, SHARED) }.result())?;
        // SAFETY: the event is live, and the call writes one handle.
        let answer = unsafe { sys::cuIpcGetEventHandle(&mut handle, event) };
        if let Err(error) = driver("share an event with other processes", answer.result()) {
            // SAFETY: the event was made above, and no other code holds it.
            let _ = unsafe { result::event::destroy(event) };
            return Err(error);
        }
        let event = CudaEvent(self.events.add((device, Handle(event))));
        Ok((event, handle.reserved.map(|byte| byte as u8)))
    }

    pub(super) fn event_of(&self, device: usize, handle: &IpcHandle) -> Result<CudaEvent> {
        self.enter(device)?;
        let (mut event, reserved) = (std::ptr::null_mut(), handle.map(|byte| byte as c_char));
        // SAFETY: the call writes one event.
        let answer = unsafe { sys::cuIpcOpenEventHandle(&mut event, sys::CUipcEventHandle { reserved }) };
        driver("open another process's event", answer.result())?;
        Ok(CudaEvent(self.events.add((device, Handle(event)))))
    }
}
