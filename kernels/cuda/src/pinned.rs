//! Host memory that a device reads while the host continues, in two halves that are used in turn.

use super::{CudaMachine, Error, Mark, Queue, Result, Slice};
use bytemuck::Pod;
use std::sync::Arc;

/// Page-locked host memory; freed on drop.
struct Pinned {
    machine: Arc<dyn CudaMachine>,
    address: u64,
    bytes: usize,
}

impl Pinned {
    fn new(machine: &Arc<dyn CudaMachine>, device: usize, bytes: usize) -> Result<Pinned> {
        let address = machine.pin(device, bytes.max(1))?;
        Ok(Pinned { machine: machine.clone(), address, bytes })
    }

    fn set(&mut self, from: &[u8]) {
        // SAFETY: `pin` has allocated at least `from.len()` bytes of this process's memory, and `from` is not part of them.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.address as *mut u8, from.len()) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the address is from `pin` and is freed once; the owner has waited for all copies out of the memory.
        unsafe { self.machine.unpin(self.address) };
    }
}

/// Copies from the host to a device without a wait of the host: values are copied into pinned memory, which the device reads on the
/// feed's own queue.
pub struct Feed {
    queue: Queue,
    halves: [Option<Pinned>; 2],
    /// The mark behind the last copy out of each half.
    read: [Option<Mark>; 2],
    turn: usize,
}

impl Feed {
    /// A feed that copies on `queue`; with a separate queue, copies run concurrently with other work.
    pub fn new(queue: Queue) -> Feed {
        Feed { queue, halves: [None, None], read: [None, None], turn: 0 }
    }

    /// The queue on which the feed copies; a queue that needs the values waits for it.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Copies values to the device. Returns immediately, unless the device has not yet read the half of the buffer that is used next.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths differ; the driver's error.
    pub fn send<T: Pod>(&mut self, into: Slice<'_>, from: &[T]) -> Result<()> {
        let (from, half) = (bytemuck::cast_slice::<T, u8>(from), self.turn);
        if into.len() != from.len() {
            return Err(Error::Argument(format!(
                "a copy of {} bytes into memory of {} bytes; both must be equally long",
                from.len(),
                into.len()
            )));
        }
        self.turn = 1 - half;
        let machine = self.queue.machine().clone();
        if let Some(read) = &self.read[half] {
            machine.synchronize(read.event())?;
        }
        if self.halves[half].as_ref().is_none_or(|pinned| pinned.bytes < from.len()) {
            self.halves[half] = None;
            self.halves[half] = Some(Pinned::new(&machine, self.queue.device(), from.len())?);
        }
        let Some(pinned) = &mut self.halves[half] else { return Ok(()) };
        pinned.set(from);
        // SAFETY: both ranges are as long as `from`; the half is not written again before its mark in `read` has happened.
        unsafe { machine.copy_from_pinned(self.queue.stream(), into.address(), pinned.address, from.len()) }?;
        match &self.read[half] {
            Some(read) => read.move_to(&self.queue),
            None => {
                self.read[half] = Some(self.queue.record()?);
                Ok(())
            }
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // The device may still read the pinned memory, so wait. An error is returned by the next call that waits.
        let _ = self.queue.finish();
    }
}
