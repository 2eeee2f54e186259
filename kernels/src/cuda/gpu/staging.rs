//! Small copies from the host's own memory: by a ring of pinned memory per stream, so that the host does not wait.
//!
//! The driver may read pageable memory after its call has returned, so a copy from there must be waited for, which waits for
//! all that the stream was given before; a step that writes 16 bytes would stop the host there. The bytes are copied into the
//! ring instead. Its quarters are used in turn: an event follows the last copy out of each, and is waited for before the
//! quarter is written again. A large copy is not worth a second one by the host, and is waited for.
//!
//! Rings outlive their streams and are given to others: pinning memory costs more than what the ring saves a short stream.

use super::numbered::{Handle, lock};
use crate::cuda::Result;
use crate::cuda::error::driver;
use cudarc::driver::{result, sys};
use std::collections::BTreeMap;
use std::sync::Mutex;

const QUARTERS: usize = 4;
/// The most that is copied by a ring, and the bytes of one of its quarters.
pub(super) const QUARTER: usize = 16 << 10;
/// What a place in the ring is a multiple of.
const GRAIN: usize = 16;

/// Pinned memory that a stream's copies come from.
pub(super) struct Ring {
    memory: Handle<*mut u8>,
    quarter: usize,
    /// Bytes of the quarter that are in use.
    used: usize,
    /// After the last copy out of each quarter that was left.
    left: [Option<Handle<sys::CUevent>>; QUARTERS],
    /// The quarter was entered, and its event is not waited for yet.
    entered: bool,
}

/// Rings of streams that are destroyed, by device.
static FREE: Mutex<BTreeMap<usize, Vec<Ring>>> = Mutex::new(BTreeMap::new());

impl Ring {
    /// A ring of staging buffers for a stream of a device. The device's context is the calling thread's.
    pub fn new(device: usize) -> Result<Ring> {
        if let Some(ring) = lock(&FREE).get_mut(&device).and_then(Vec::pop) {
            return Ok(ring);
        }
        // SAFETY: memory of the host whose content is undefined, and is written before it is read.
        let memory = unsafe { result::malloc_host(QUARTERS * QUARTER, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let memory = Handle(driver("pin memory of the host", memory)?.cast());
        Ok(Ring { memory, quarter: 0, used: 0, left: [None; QUARTERS], entered: false })
    }

    /// Gives a stream a copy of at most [`QUARTER`] bytes, which are read before this returns.
    ///
    /// # Safety
    /// The stream is live, its context is the thread's, and as many bytes are allocated at `into`.
    pub unsafe fn write(&mut self, stream: sys::CUstream, into: u64, from: &[u8]) -> Result<()> {
        if self.used + from.len() > QUARTER {
            self.leave(stream)?;
        }
        if let (true, Some(event)) = (self.entered, self.left[self.quarter]) {
            // SAFETY: a live event of this device.
            driver("wait for an event", unsafe { result::event::synchronize(event.0) })?;
        }
        self.entered = false;
        let at = self.quarter * QUARTER + self.used;
        // SAFETY: the place is within the ring, nothing reads it, and the bytes stay until the quarter's event has happened.
        let place = unsafe {
            let place = self.memory.0.add(at);
            std::ptr::copy_nonoverlapping(from.as_ptr(), place, from.len());
            std::slice::from_raw_parts(place, from.len())
        };
        self.used = (self.used + from.len()).next_multiple_of(GRAIN).min(QUARTER);
        // SAFETY: the caller's promise.
        driver("copy to the device", unsafe { result::memcpy_htod_async(into, place, stream) })
    }

    /// Turns to the next quarter.
    fn leave(&mut self, stream: sys::CUstream) -> Result<()> {
        let event = match self.left[self.quarter] {
            Some(event) => event,
            None => {
                let plain = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
                Handle(driver("make an event", result::event::create(plain))?)
            }
        };
        self.left[self.quarter] = Some(event);
        // SAFETY: both are live, and of one device.
        driver("record an event", unsafe { result::event::record(event.0, stream) })?;
        (self.quarter, self.used, self.entered) = ((self.quarter + 1) % QUARTERS, 0, true);
        Ok(())
    }

    /// Keeps the ring for another stream of the device; this one is about to be destroyed.
    pub fn retire(mut self, device: usize, stream: sys::CUstream) {
        // If no event can be recorded behind the last copies, the ring is leaked: the copies may still be under way.
        if self.leave(stream).is_ok() {
            lock(&FREE).entry(device).or_default().push(self);
        }
    }
}
