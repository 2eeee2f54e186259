//! Memory and events that ranks of other processes on this host use, by CUDA's handles.

use super::{Home, Mark, Memory, OwnEvent, Queue};
use crate::{CudaEvent, IpcHandle, Result};
use std::sync::Arc;

/// The driver shares whole blocks of this many bytes: a smaller allocation may lie in a block beside other memory.
const BLOCK: usize = 2 << 20;

impl Memory {
    /// Memory of at least `bytes` bytes on the queue's device, and the handle by which other processes open it. All of them must have
    /// dropped what they opened before this memory is dropped.
    ///
    /// # Errors
    /// The driver's error: too little memory, or a GPU that shares none, such as a part of one (MIG).
    pub fn shared(queue: &Queue, bytes: usize) -> Result<(Memory, IpcHandle)> {
        let bytes = bytes.max(1).checked_next_power_of_two().unwrap_or(usize::MAX).max(BLOCK);
        let memory = Memory::new(queue.machine(), queue.device(), bytes)?;
        let handle = queue.machine().share_memory(memory.device, memory.address)?;
        Ok((memory, handle))
    }

    /// Memory of `bytes` bytes of another process, for the queue's device. It is closed when dropped, before which the work on it must have
    /// run.
    ///
    /// # Errors
    /// The driver's error: a device that does not reach the memory, a process in another container.
    ///
    /// # Safety
    /// The handle's memory has `bytes` bytes and stays with its owner until this view is dropped.
    pub unsafe fn opened(queue: &Queue, handle: &IpcHandle, bytes: usize) -> Result<Memory> {
        let (machine, device) = (queue.machine().clone(), queue.device());
        let address = machine.open_memory(device, handle)?;
        Ok(Memory { machine, device, address, bytes, home: Home::Opened })
    }
}

impl Mark {
    /// A mark that has not been moved yet, and the handle by which other processes open it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn shared(queue: &Queue) -> Result<(Mark, IpcHandle)> {
        let (event, handle) = queue.machine().share_event(queue.device())?;
        Ok((Mark::of(queue, event), handle))
    }

    /// A mark of another process, which must be dropped before its owner drops it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn opened(queue: &Queue, handle: &IpcHandle) -> Result<Mark> {
        Ok(Mark::of(queue, queue.machine().open_event(queue.device(), handle)?))
    }

    fn of(queue: &Queue, event: CudaEvent) -> Mark {
        Mark(Arc::new(OwnEvent { machine: queue.machine().clone(), event }))
    }
}
